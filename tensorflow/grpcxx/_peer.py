"""What a peer says of itself in its GetStatus response, as far as a rendezvous key needs it."""

from __future__ import annotations

from collections.abc import Iterator

from ._status import Code, Error


def first_device(response: bytes) -> tuple[str, int]:
    """Name and incarnation of the first device in a serialized GetStatusResponse."""
    for number, attributes in _fields(response):
        if number == 1:
            values = dict(_fields(attributes))
            return values[1].decode(), values.get(6, 0)
    raise Error(Code.FAILED_PRECONDITION, "the peer names no device, so nothing can be received from it")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of the fields of a protobuf message."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(message, place)
        else:
            size, place = (8, place) if kind == 1 else (4, place) if kind == 5 else _varint(message, place)
            value = message[place : place + size]
            place += size
            if len(value) != size or kind not in (1, 2, 5):
                raise Error(Code.DATA_LOSS, "the GetStatus response of the peer cannot be read")
            if kind != 2:
                value = int.from_bytes(value, "little")
        yield tag >> 3, value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            break
        value |= (message[place] & 0x7F) << shift
        place += 1
        if not message[place - 1] & 0x80:
            return value, place
    raise Error(Code.DATA_LOSS, "the GetStatus response of the peer cannot be read")
