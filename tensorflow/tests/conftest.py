import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes minutes; continuous integration chooses when to run it")
    config.addinivalue_line("markers", "smoke: one for each part, for versions of TensorFlow that are tested in short")
    config.addinivalue_line("markers", "processes: starts processes with TensorFlow")
