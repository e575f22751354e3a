"""Where tasks listen, and the addresses that others dial."""

import contextlib
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import grpcxx
from grpcxx.group import _listen
from ports import free_port


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_a_server_on_all_addresses_tells_one_that_others_can_dial(listen):
    if listen.startswith("[") and not socket.has_ipv6:
        pytest.skip("there is no IPv6")
    with grpcxx.Server(listen) as server:
        host, _, port = server.address.rpartition(":")
        assert host not in ("0.0.0.0", "[::]")
        assert server.listening == listen.replace(":0", f":{port}")
        server.push("w", np.ones(3))
        with grpcxx.Client(server.address) as client:
            np.testing.assert_array_equal(client.pull("w"), np.ones(3))


class Forwarder:
    """Hands what comes to one port to another, as NAT does."""

    def __init__(self, port):
        self.port = port
        self.came = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            self.came += 1
            far = socket.create_connection(("127.0.0.1", self.port))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(one, other), daemon=True).start()

    @staticmethod
    def _forward(one, other):
        # The other end may be gone before what came for it.
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


def test_a_rank_behind_nat_listens_at_one_address_and_is_dialled_at_another():
    rendezvous = f"127.0.0.1:{free_port()}"
    ports = [free_port(), free_port()]
    forwarder = Forwarder(ports[1])
    found = [None] * 3
    plain = {"GRPCXX_SHM": "off"}

    def run(rank, **places):
        with grpcxx.Group(rank, 3, rendezvous, settings=plain, **places) as group:
            found[rank] = group.all_reduce(np.full(1000, rank + 1.0))

    ranks = [
        threading.Thread(target=run, args=(0,)),
        threading.Thread(target=run, args=(1,), kwargs={"listen": f"0.0.0.0:{ports[1]}", "address": forwarder.address}),
        threading.Thread(target=run, args=(2,)),
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    forwarder.listener.close()
    for sums in found:
        np.testing.assert_array_equal(sums, np.full(1000, 6.0))
    assert forwarder.came > 0


def test_where_a_rank_listens():
    assert _listen(0, "127.0.0.1:7000", None) == "127.0.0.1:7000"
    assert _listen(0, "localhost:7000", None) == "127.0.0.1:7000"
    assert _listen(1, "127.0.0.1:7000", None) == "127.0.0.1:0"
    # Rank 0 is dialled at the rendezvous, whatever else it says.
    assert _listen(0, "127.0.0.1:7000", "127.0.0.1:7001") == "127.0.0.1:7000"
    # No host has this one (RFC 5737): it is that of a router, which hands on what comes there.
    assert _listen(0, "203.0.113.5:7000", None) == "0.0.0.0:7000"
    assert _listen(1, "127.0.0.1:7000", "203.0.113.5:7001") == "0.0.0.0:7001"
    assert _listen(1, "203.0.113.5:7000", "127.0.0.1:7001") == "127.0.0.1:7001"
    for bad in ("127.0.0.1", ":7000", "127.0.0.1:x", "127.0.0.1:70000", "no-such-host.invalid:7000"):
        with pytest.raises(ValueError, match="rendezvous is"):
            _listen(1, bad, None)


RANK = """
import logging, sys
import numpy as np
import grpcxx

logging.basicConfig(level=logging.INFO)
grpcxx.log_to(logging.getLogger())
rank, port = int(sys.argv[1]), sys.argv[2]
with grpcxx.Group(rank, 2, f"head:{port}") as group:
    assert group.all_reduce(np.ones(4))[0] == 2
    print(group._engine.native.listening, flush=True)
"""


def test_ranks_meet_where_the_own_name_leads_to_127_0_1_1(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 head\n")
    inside = ["unshare", "--mount", "sh", "-c", f"mount --bind {hosts} /etc/hosts && exec \"$@\"", "sh"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("there are no mount namespaces here")
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [*inside, sys.executable, "-c", RANK, str(rank), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    assert told[0][0].strip() == f"0.0.0.0:{port}"
    assert told[1][0].startswith("0.0.0.0:")
    assert f"rank 0 listens on 0.0.0.0:{port}; the others dial head:{port}, where they meet" in told[0][1]
    assert "rank 1 listens on 0.0.0.0:" in told[1][1] and "the others dial 127." not in told[1][1]
