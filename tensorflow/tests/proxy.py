"""What listens on the wire of a test: a port that hands all bytes on, and keeps them."""

import contextlib
import socket
import threading


class Proxy:
    """A port in front of another one."""

    def __init__(self, address, port=0):
        self._to = address
        self._heard = bytearray()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def heard(self):
        """All bytes so far, of both directions."""
        with self._lock:
            return bytes(self._heard)

    def close(self):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                host, _, port = self._to.rpartition(":")
                try:
                    far = socket.create_connection((host, int(port)))
                except OSError:
                    near.close()
                    continue
                for one, other in [(near, far), (far, near)]:
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                with self._lock:
                    self._heard += data
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)
