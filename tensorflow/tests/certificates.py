"""Certificates for the tasks of tests, made by openssl."""

import subprocess

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """The authority of a cluster, in a folder with the certificates that it has signed."""

    def __init__(self, folder):
        self.folder = folder
        self.renew()

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def renew(self):
        """Takes a new key: what it has signed before is worth nothing to those who know the new one alone."""
        self.openssl("req", "-x509", *KEY, "-subj", "/CN=c", "-keyout", "ca.key", "-out", "ca.pem")

    def sign(self, task, file=None):
        """Signs a certificate for the task, as in `ps/0`, and returns the variables of who has it."""
        file = file or task.replace("/", "-")
        name = task if "://" in task else f"grpcxx://c/{task}"
        usage = "extendedKeyUsage=serverAuth,clientAuth"
        (self.folder / "task.ext").write_text(f"subjectAltName=URI:{name}\n{usage}\n")
        self.openssl("req", *KEY, "-subj", "/CN=task", "-keyout", "new.key", "-out", "task.csr")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        self.openssl("x509", "-req", "-in", "task.csr", *signer, "-extfile", "task.ext", "-out", "new.pem")
        for kind in ("key", "pem"):
            (self.folder / f"new.{kind}").rename(self.folder / f"{file}.{kind}")
        files = {"CERT": f"{file}.pem", "KEY": f"{file}.key", "CA": "ca.pem"}
        paths = {f"GRPCXX_TLS_{variable}": str(self.folder / name) for variable, name in files.items()}
        return {"GRPCXX_TLS": "require", **paths}
