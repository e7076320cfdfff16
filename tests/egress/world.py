"""The outside world of the network lab: web servers with and without TLS at every address, and a name server that counts questions.

`python world.py CERTIFICATE NAMES ADDRESS`: NAMES is a JSON mapping of host names to addresses, the name server is at ADDRESS. What each
server says names the address that was reached and the name that was asked for.
"""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import sys
import threading

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

NAMES_PORT = 5353
COUNT_PORT = 5354
PORTS = {80: False, 443: True, 8443: True, 8080: False}


def local(connection: socket.socket) -> str:
    return str(connection.getsockname()[0]).removeprefix("::ffff:")


class Plain(socketserver.StreamRequestHandler):
    """Answers each request of a connection with the address, the host and how many bytes of body were announced."""

    def handle(self) -> None:
        while first := self.rfile.readline().decode().strip():
            fields = {}
            while line := self.rfile.readline().decode().strip():
                name, _, value = line.partition(":")
                fields[name.lower()] = value.strip()
            body = f"{local(self.connection)} {fields.get('host')} {first.split()[0]}".encode()
            if "upgrade" in fields:
                self.wfile.write(
                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n\r\n" if "/echo" in first else b"HTTP/1.1 200 OK\r\n\r\n"
                )
                while "/echo" in first and (data := self.rfile.readline()):
                    self.wfile.write(data)
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            if fields.get("connection") == "close":
                return


def encrypted(certificate: str) -> type[socketserver.BaseRequestHandler]:
    """Tells the client the address and the name that it asked for, and gives back what it says."""

    class Encrypted(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked: list[str | None] = []
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            context.sni_callback = lambda _, name, __: asked.append(name)
            with context.wrap_socket(self.request, server_side=True) as connection:
                connection.sendall(f"{local(connection)} {asked[0]}".encode())
                while data := connection.recv(65536):
                    connection.sendall(data)

    return Encrypted


def serve_names(address: str, names: dict[str, str], asked: list[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, NAMES_PORT))
        while True:
            data, peer = server.recvfrom(2000)
            query = dns.message.from_wire(data)
            name = query.question[0].name.to_text(omit_final_dot=True).lower()
            asked.append(f"{name} {dns.rdatatype.to_text(query.question[0].rdtype)}")
            response = dns.message.make_response(query)
            response.flags |= dns.flags.RA
            if name not in names:
                response.set_rcode(dns.rcode.NXDOMAIN)
            elif query.question[0].rdtype == dns.rdatatype.A:
                response.answer.append(dns.rrset.from_text(query.question[0].name, 60, "IN", "A", names[name]))
            server.sendto(response.to_wire(), peer)


class Server(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6
    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients that break off are part of the test."""


def main() -> None:
    certificate, names, address = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    asked: list[str] = []

    class Count(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(json.dumps(asked).encode())

    servers = [Server(("::", port), encrypted(certificate) if tls else Plain) for port, tls in PORTS.items()]
    servers.append(Server(("::", COUNT_PORT), Count))
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=serve_names, args=(address, names, asked), daemon=True).start()
    print("up", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
