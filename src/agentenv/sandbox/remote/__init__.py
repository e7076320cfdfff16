"""Sandboxes of a server, behind the same handle as those of this machine: the server plays the node, and a tunnel through it leads to
each sandbox's agent, so that commands, files, terminals and environments speak the same protocol as they do locally.
"""
