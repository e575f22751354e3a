"""Ranks of a group in threads of this process, each with an engine of its own."""

import threading

from ports import free_port

import grpcxx


def together(size, code, **options):
    """Runs `code(group)` as each of `size` ranks, and returns what they return, or the `grpcxx.Error` they raise."""
    rendezvous = f"127.0.0.1:{free_port()}"
    results = [None] * size

    def run(rank):
        try:
            with grpcxx.Group(rank, size, rendezvous, **options) as group:
                results[rank] = code(group)
        except grpcxx.Error as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
