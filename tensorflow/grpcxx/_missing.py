"""Says what to do where there is no plugin for the TensorFlow that runs.

`plugin/loader.cc` runs this file inside `import tensorflow`. TensorFlow itself stays as it is; only asking for
`protocol="grpc++"` ends in an error that tells more than that no such server is registered.
"""

import functools

PROTOCOL = "grpc++"


def explain(version, builds, reason):
    """The text of the error."""
    if reason:
        return (
            f'protocol="grpc++" is not available: the grpcxx plugin for TensorFlow {version} does not load: {reason}.'
            " Install grpcxx again: pip install --force-reinstall ./tensorflow"
        )
    return (
        f'protocol="grpc++" is not available: this grpcxx holds no plugin for TensorFlow {version},'
        f" only for {builds or 'none'}. Install grpcxx again beside this TensorFlow (pip install ./tensorflow in a"
        " checkout), or install a TensorFlow that it was built for. `python -m grpcxx doctor` tells more"
    )


def install(version, builds, reason=""):
    """Makes every way to start a server of TensorFlow refuse grpc++ with that text."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import errors_impl
    from tensorflow.python.training import server_lib

    def refuse(server_def):
        if getattr(server_def, "protocol", "") == PROTOCOL:
            raise errors_impl.UnimplementedError(None, None, explain(version, builds, reason))

    make_server_def = server_lib._make_server_def

    @functools.wraps(make_server_def)
    def checked_make(*arguments, **named):
        server_def = make_server_def(*arguments, **named)
        refuse(server_def)
        return server_def

    server_lib._make_server_def = checked_make

    for name in ("set_server_def", "update_server_def", "enable_collective_ops"):
        method = getattr(context.Context, name, None)
        if method is None:
            continue

        @functools.wraps(method)
        def checked(self, server_def, *arguments, _method=method, **named):
            refuse(server_def)
            return _method(self, server_def, *arguments, **named)

        setattr(context.Context, name, checked)
