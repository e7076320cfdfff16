"""Connect RPC, the server's side, as an ASGI application (https://connectrpc.com/docs/protocol).

Unary, server-streaming and client-streaming calls in JSON and protobuf; messages come gzipped or plain and go plain.
"""

from agentenv.server.envd.connect.codes import Code, ConnectError
from agentenv.server.envd.connect.service import Call, Method, Service, client_stream, server_stream, unary

__all__ = ["Call", "Code", "ConnectError", "Method", "Service", "client_stream", "server_stream", "unary"]
