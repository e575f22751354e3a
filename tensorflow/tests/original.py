"""A star peer that plays an original, with an encoder of its own: it announces nothing, and must not be cut off.

An original whose peer resets a connection under a packet, while another packet waits for it, never sends again. So what
these peers watch is whether all that they write is taken, and whether the stream of the other side ends in order.
"""

import socket
import struct
import threading
import time

_HEADER = struct.Struct("<4siQiiQ")
_STAR_RUN_GRAPH = 7
_UINT8 = 4
_PIECE_BYTES = 64 << 10
_PATIENCE_S = 30


class OriginalServer:
    """Answers each pull of an array with so many bytes, and pauses behind each piece that it writes."""

    def __init__(self, tensor_bytes, pause_s=0.002):
        self.was_reset = False
        self.taken_bytes = 0
        self._record = _record(tensor_bytes)
        self._pause_s = pause_s
        self._changed = threading.Condition()
        self._open = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            stream, _ = self._listener.accept()
            with self._changed:
                self._open += 1
            threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream):
        try:
            while header := _read(stream, _HEADER.size):
                magic, method, tag, _, _, payload_bytes = _HEADER.unpack(header)
                assert magic == b"AAAA"
                payload = _read(stream, payload_bytes)
                names = _fetched(payload) if method == _STAR_RUN_GRAPH else b""
                answer = names + self._record if names else b""
                self._write(stream, _HEADER.pack(b"BBBB", 0, tag, 0, len(names), len(answer)) + answer)
        except ConnectionError:
            self.was_reset = True
        finally:
            # An original keeps a connection whose peer has ended its stream; here it lives as long as `stream`.
            with self._changed:
                self._open -= 1
                self._changed.notify_all()

    def _write(self, stream, packet):
        for begin in range(0, len(packet), _PIECE_BYTES):
            piece = packet[begin : begin + _PIECE_BYTES]
            stream.sendall(piece)
            with self._changed:
                self.taken_bytes += len(piece)
                self._changed.notify_all()
            time.sleep(self._pause_s)

    def until_taken(self, size):
        """Waits until so many bytes were written."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.taken_bytes >= size, _PATIENCE_S)

    def until_left(self):
        """Waits until no peer is connected any more, or has ended its stream."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._open == 0, _PATIENCE_S)

    def close(self):
        self._listener.close()


class OriginalClient:
    """Asks for the status of its peer again and again, a little beyond the end of the peer's stream too."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.was_reset = False
        self.asked = 0
        self._stream = socket.create_connection((host, int(port)))
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, daemon=True).start()

    def _write(self):
        try:
            # What was begun when the stream of the peer ended is still written.
            behind_the_end = 20
            while behind_the_end:
                self._stream.sendall(_HEADER.pack(b"AAAA", 0, self.asked, 0, 0, 0))
                self.asked += 1
                time.sleep(0.005)
                behind_the_end -= self._ended.is_set()
        except ConnectionError:
            self.was_reset = True

    def _read(self):
        try:
            while self._stream.recv(1 << 16):
                pass
        except ConnectionError:
            self.was_reset = True
        self._ended.set()

    def until_asked(self, times):
        """Waits until it has asked so often."""
        end = time.monotonic() + _PATIENCE_S
        while self.asked < times:
            assert time.monotonic() < end
            time.sleep(0.001)

    def until_ended(self):
        """Waits until the peer has ended its stream, and all is written."""
        assert self._ended.wait(_PATIENCE_S)
        self._writer.join(_PATIENCE_S)


def _record(size):
    """A tensor of bytes, with leftovers of memory where its shape has no dimensions."""
    shape = b"\0" + bytes([_UINT8]) + bytes(3) + struct.pack("<I", size) + b"\xcc" * 9 + bytes([_UINT8, 1, 1])
    return shape + struct.pack("<QQ", size, size) + bytes(size)


def _fetched(metadata):
    """The one name that a graph call without feeds fetches, with its length before it."""
    feeds, fetches, size = struct.unpack_from("<iiH", metadata)
    assert (feeds, fetches) == (0, 1)
    return metadata[8 : 10 + size]


def _read(stream, size):
    """So many bytes; fewer if the stream ends."""
    read = bytearray()
    while len(read) < size and (piece := stream.recv(size - len(read))):
        read += piece
    return bytes(read)
