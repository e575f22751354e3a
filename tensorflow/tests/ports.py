"""Ports that tests tell to others before anybody listens on them."""

import socket

_held = []


def free_port():
    """A port on which this process and those that it starts can listen, and which nobody else is given meanwhile.

    A socket is bound to it, until this process ends, that does not listen. The system gives out no port that is bound.
    Sockets share one if all say so before (`SO_REUSEADDR`), as all listeners here do, and no other one listens.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    _held.append(held)
    return held.getsockname()[1]


def free_ports(number):
    return [free_port() for _ in range(number)]
