"""A ggml-rpc-server that only shakes hands: `-H HOST -p PORT`. FAKE_RPC=old takes no capabilities behind the command,
FAKE_RPC=silent accepts and says nothing, FAKE_RPC=fails ends at once."""

from __future__ import annotations

import os
import socket
import struct
import sys


def received(connection: socket.socket, n_bytes: int) -> bytes:
    found = b""
    while len(found) < n_bytes and (more := connection.recv(n_bytes - len(found))):
        found += more
    return found


def main() -> None:
    behaviour = os.environ.get("FAKE_RPC", "")
    if behaviour == "fails":
        sys.exit("error: no device called CUDA7")
    host, port = sys.argv[sys.argv.index("-H") + 1], int(sys.argv[sys.argv.index("-p") + 1])
    with socket.create_server((host, port)) as server:
        print(f"Starting RPC server v4.0.3\n  endpoint       : {host}:{port}", flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                command, size = struct.unpack("<BQ", received(connection, 9))
                if behaviour == "silent" or command != 14 or size != (0 if behaviour == "old" else 24):
                    continue
                received(connection, size)
                connection.sendall(struct.pack("<QBBB", 3, 4, 0, 3) + bytes(0))


if __name__ == "__main__":
    main()
