"""The messages of the in-sandbox protocol.

Written in the .proto files; the Python beside them is derived by scripts/derive_wire.py.
"""
