"""A worker of the embedding parameter server, with NumPy and the package grpcxx.

    embedding serve --listen 127.0.0.1:7100 --table users:64:adagrad
    python examples/embedding/python/embedding.py 127.0.0.1:7100
"""

from __future__ import annotations

import json
import sys

import numpy as np

import grpcxx


def mix(ids: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, by which the servers share the ids."""
    with np.errstate(over="ignore"):
        bits = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


class Embedding:
    """A worker's way to all servers of a set of tables, in the order of their indices."""

    def __init__(self, *addresses: str, timeout: float = 30):
        self._clients = [grpcxx.Client(address, timeout=timeout) for address in addresses]
        for place, description in enumerate(self.describe()):
            found = description["index"], description["servers"]
            if found != (place, len(addresses)):
                raise ValueError(f"{addresses[place]} is server {found[0]} of {found[1]}; name all, in the order of --index")
        self._dims = {table["name"]: table["dim"] for table in description["tables"]}

    def describe(self) -> list[dict]:
        """What each server says of itself."""
        return [self._json(client, "embedding.tables", "tables") for client in self._clients]

    def snapshot(self) -> list[dict]:
        """Lets each server write a snapshot, and waits until they have."""
        return [self._json(client, "embedding.snapshot", "snapshot") for client in self._clients]

    def lookup(self, table: str, ids) -> np.ndarray:
        """The rows of these ids, float32 [n, dim]."""
        ids = np.asarray(ids, np.uint64)
        function = f"embedding.lookup/{table}"
        if len(self._clients) == 1:
            return self._clients[0].call(function, {"ids": ids.view(np.int64)}, "rows")
        rows = np.empty((len(ids), self._dims[table]), np.float32)
        calls = [
            (places, client.call_async(function, {"ids": ids[places].view(np.int64)}, "rows"))
            for client, places in self._parted(ids)
        ]
        for places, call in calls:
            rows[places] = call.result()
        return rows

    def update(self, table: str, ids, gradients, rate: float) -> None:
        """Changes rows by their gradients, float32 [n, dim]. Those of the same id are summed first."""
        ids, gradients = np.asarray(ids, np.uint64), np.asarray(gradients, np.float32)
        if len(gradients) != len(ids):
            raise ValueError(f"{len(gradients)} gradients came with {len(ids)} ids")
        calls = []
        for client, places in self._parted(ids):
            feeds = {"ids": ids[places].view(np.int64), "gradients": gradients[places], "rate": np.float32(rate)}
            calls.append(client.call_async(f"embedding.update/{table}", feeds, "updated"))
        for call in calls:
            call.result()

    def _parted(self, ids: np.ndarray):
        owners = (mix(ids) >> np.uint64(32)) % np.uint64(len(self._clients))
        for index, client in enumerate(self._clients):
            places = np.flatnonzero(owners == index)
            if len(places):
                yield client, places

    @staticmethod
    def _json(client: grpcxx.Client, function: str, fetch: str):
        return json.loads(client.call(function, fetch=fetch).tobytes())


def main() -> None:
    embedding = Embedding(*sys.argv[1:])
    ids = np.array([1, 2, 2**60, 2], np.uint64)
    before = embedding.lookup("users", ids)
    embedding.update("users", ids, np.ones_like(before), rate=0.1)
    after = embedding.lookup("users", ids)
    print("moved by", np.abs(after - before).max(axis=1))


if __name__ == "__main__":
    main()
