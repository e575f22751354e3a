"""TLS between a client and a server in Python: who is called, by the names in certificates."""

import subprocess

import pytest

import grpcxx
from grpcxx import Code


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def settings(tmp_path):
    """The settings of a task by its job, with a certificate of its own for index 0."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(tmp_path, "req", "-x509", *key, "-subj", "/CN=c", "-keyout", "ca.key", "-out", "ca.pem")

    def of(job):
        openssl(tmp_path, "req", *key, "-subj", f"/CN={job}", "-keyout", f"{job}.key", "-out", f"{job}.csr")
        usage = "extendedKeyUsage=serverAuth,clientAuth"
        (tmp_path / "task.ext").write_text(f"subjectAltName=URI:grpcxx://c/{job}/0\n{usage}\n")
        authority = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(
            tmp_path, "x509", "-req", "-in", f"{job}.csr", *authority, "-extfile", "task.ext", "-out", f"{job}.pem"
        )
        files = {"CERT": f"{job}.pem", "KEY": f"{job}.key", "CA": "ca.pem"}
        paths = {f"GRPCXX_TLS_{name}": str(tmp_path / file) for name, file in files.items()}
        return {"GRPCXX_TLS": "require", "GRPCXX_SHM": "off", **paths}

    return of


def test_a_server_that_proves_to_be_another_task_is_not_called(settings):
    with grpcxx.Server(settings=settings("ps")) as server:
        server.register(lambda: 7, name="seven")
        worker = settings("worker")
        with grpcxx.Client(server.address, settings=worker, task=("ps", 1)) as client:
            with pytest.raises(grpcxx.Error, match="another task") as refused:
                client.call("seven", timeout=20)
            assert refused.value.code == Code.UNAUTHENTICATED
        with grpcxx.Client(server.address, settings=worker, task=("ps", 0)) as client:
            assert client.call("seven", timeout=20) == 7
