"""Runs inside a sandbox and tries to get somewhere: reads a JSON list of attempts from its first argument, prints a list of outcomes.

Needs nothing but Python. Each attempt is [what, …]; an outcome is "reached: …" with what came back, or how it failed.
"""

from __future__ import annotations

import errno
import json
import random
import socket
import ssl
import struct
import sys

PATIENCE = 3.0
NO_ANSWER = 0.3
"""Seconds for answers that come at once where they come at all."""


def tcp(address: str, port: int) -> str:
    with socket.create_connection((address, port), PATIENCE) as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(b"?\r\n\r\n")
        return "reached: " + connection.recv(200).decode(errors="replace")


def udp(address: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as connection:
        connection.settimeout(NO_ANSWER)
        connection.connect((address, port))
        connection.send(b"?")
        return "reached: " + connection.recv(200).decode(errors="replace")


def raw(address: str) -> str:
    """An echo request, and a packet that an ordinary socket would not send."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as connection:
        connection.settimeout(NO_ANSWER)
        header = struct.pack("!BBHHH", 8, 0, 0, 7, 7)
        checksum = 0xFFFF - sum(struct.unpack("!4H", header)) % 0xFFFF
        connection.sendto(struct.pack("!BBHHH", 8, 0, checksum, 7, 7), (address, 0))
        while True:
            data, peer = connection.recvfrom(200)
            if peer[0] == address and data[20] == 0:
                return "reached: echo"


def frame(interface: str) -> str:
    """A whole Ethernet frame with somebody else's address as its sender."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as connection:
        connection.bind((interface, 0))
        return f"reached: sent {connection.send(bytes(60))}"


def http(address: str, port: int, *requests: str) -> str:
    """Several requests on one connection, one after the other's answer."""
    answers = []
    with socket.create_connection((address, port), PATIENCE) as connection:
        connection.settimeout(PATIENCE)
        for request in requests:
            connection.sendall(request.encode())
            answers.append(connection.recv(4096).decode(errors="replace"))
    return "reached: " + "|".join(answers)


def tls(address: str, port: int, name: str | None) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((address, port), PATIENCE) as plain, context.wrap_socket(plain, server_hostname=name) as connection:
        connection.settimeout(PATIENCE)
        return "reached: " + connection.recv(200).decode(errors="replace")


def dns(server: str, name: str, kind: int, protocol: str = "udp") -> str:
    """The answer to one question: its code and IPv4 addresses."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    question = struct.pack("!6H", random.randrange(65536), 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE)
        connection.connect((server, 53))
        connection.sendall(question if protocol == "udp" else struct.pack("!H", len(question)) + question)
        answer = connection.recv(2000)
        answer = answer if protocol == "udp" else (answer + connection.recv(2000) if len(answer) < 3 else answer)[2:]
    count = struct.unpack_from("!H", answer, 6)[0]
    tail = answer[len(answer) - 4 :] if count and kind == 1 else b""
    return f"reached: code {answer[3] & 15}, {count} records{', ' + socket.inet_ntoa(tail) if tail else ''}"


ATTEMPTS = {"tcp": tcp, "udp": udp, "raw": raw, "frame": frame, "http": http, "tls": tls, "dns": dns}


def outcome(what: str, *arguments: object) -> str:
    try:
        return ATTEMPTS[what](*arguments)
    except TimeoutError:
        return "silence"
    except ssl.SSLError as error:
        return f"TLS: {error.reason}"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))


if __name__ == "__main__":
    print(json.dumps([outcome(*attempt) for attempt in json.loads(sys.argv[1])]))
