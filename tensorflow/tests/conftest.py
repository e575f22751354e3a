import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes minutes; continuous integration chooses when to run it")
    config.addinivalue_line("markers", "smoke: one for each part, for versions of TensorFlow that are tested in short")
    config.addinivalue_line("markers", "processes: starts processes with TensorFlow")


@pytest.fixture
def server():
    """A server of arrays, with a page of metrics."""
    import grpcxx

    with grpcxx.Server(metrics="127.0.0.1:0") as server:
        yield server


@pytest.fixture
def client(server):
    """A client of that server, with an engine of its own."""
    import grpcxx

    with grpcxx.Client(server.address, timeout=120) as client:
        yield client
