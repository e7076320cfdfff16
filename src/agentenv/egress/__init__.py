"""What leaves a sandbox: the kernel's rules for it, and the means to change them inside one network namespace.

`isolation` and `node` build on it; docs/network.md says what a sandbox may reach.
"""
