"""The command line `agentenv`: one module a group of commands, listed in `table` and imported only when one of them is called.

Commands print results to stdout and errors to stderr, both as JSON where `--json` asks for it; nothing below this room prints.
"""
