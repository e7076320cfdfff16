"""The wall made of Firecracker: a virtual machine of its own for each sandbox, on the processor's own support (KVM)."""
