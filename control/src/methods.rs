//! Which methods there are, and what the endpoint does with each.

use grpcxx_rpc::Right;

/// A method that peers may call.
#[derive(Debug)]
pub(crate) struct Method {
    /// The service in gRPC's spelling.
    pub(crate) service: &'static str,
    /// The name within the service.
    pub(crate) name: &'static str,
    /// What happens to its calls.
    pub(crate) class: Class,
    /// The right that its caller needs, if it needs any.
    pub(crate) right: Option<Right>,
    /// Whether a caller may send several messages, or gets several.
    pub(crate) is_stream: bool,
}

/// What happens to the calls of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Waits for a tensor, possibly long.
    Tensor,
    /// Answered by the engine soon.
    Service,
    /// Answered by a service of the task's program; a stream may last for ever.
    Registered,
    /// Tells how the endpoint is; has places of its own.
    Observer,
    /// Answered UNIMPLEMENTED with this text, without reading the request.
    Unserved(&'static str),
}

use Class::{Observer, Registered, Service, Tensor, Unserved};

impl Method {
    /// Whether it is a method of a service that the task's program has registered.
    pub(crate) fn is_registered(&self) -> bool {
        self.service == REGISTERED.service
    }

    /// Whether it is a method of gRPC's reflection.
    pub(crate) fn reflects(&self) -> bool {
        self.name == REFLECTION
    }

    /// Whether it is a method of gRPC's health.
    pub(crate) fn tells_health(&self) -> bool {
        self.service == HEALTH
    }
}

/// The paths of all methods that are known by name.
#[cfg(any(test, fuzzing))]
pub(crate) fn paths() -> Vec<String> {
    let path = |method: &Method| format!("/{}/{}", method.service, method.name);
    METHODS.iter().map(path).collect()
}

/// The method that a request names; one that stands for all others if there is no such method.
pub(crate) fn find(path: &str) -> &'static Method {
    let Some((service, name)) = path.strip_prefix('/').and_then(|p| p.split_once('/')) else {
        return &UNKNOWN;
    };
    METHODS
        .iter()
        .find(|method| method.service == service && (method.name == name || method.name == ANY))
        .unwrap_or(&UNKNOWN)
}

/// Whether a path leads to none of them.
pub(crate) fn is_unknown(method: &Method) -> bool {
    method.service == UNKNOWN.service
}

/// Services whose health can be asked for, beside the whole endpoint.
pub(crate) const HEALTH_SERVICES: [&str; 2] = [WORKER, MASTER];

/// All methods that have a row of their own in the metrics.
pub(crate) const METHODS: &[Method] = &[
    method(WORKER, "GetStatus", Service),
    method(WORKER, "CreateWorkerSession", Service).for_right(Right::Step),
    method(WORKER, "DeleteWorkerSession", Service).for_right(Right::Step),
    method(WORKER, "RegisterGraph", Unserved(NO_GRAPHS_WORKER)),
    method(WORKER, "DeregisterGraph", Unserved(NO_GRAPHS_WORKER)),
    method(WORKER, "RunGraph", Unserved(NO_GRAPHS_WORKER)),
    method(WORKER, "CleanupGraph", Service).for_right(Right::Step),
    method(WORKER, "CleanupAll", Service).for_right(Right::Admin),
    method(WORKER, "RecvTensor", Tensor).for_right(Right::Step),
    method(WORKER, "FuseRecvTensor", Tensor).for_right(Right::Step),
    method(WORKER, "MarkRecvFinished", Service).for_right(Right::Step),
    method(WORKER, "Logging", Service).for_right(Right::Step),
    method(WORKER, "Tracing", Unserved(NO_TRACING)),
    method(WORKER, "RecvBuf", Unserved(NO_COLLECTIVES)),
    method(WORKER, "GetStepSequence", Unserved(NO_COLLECTIVES)),
    method(WORKER, "CompleteGroup", Unserved(NO_COLLECTIVES)),
    method(WORKER, "CompleteInstance", Unserved(NO_COLLECTIVES)),
    method(MASTER, "CreateSession", Service).for_right(Right::Step),
    method(MASTER, "ExtendSession", Unserved(NO_GRAPHS_MASTER)),
    method(MASTER, "PartialRunSetup", Unserved(NO_GRAPHS_MASTER)),
    method(MASTER, "RunStep", Unserved(NO_GRAPHS_MASTER)),
    method(MASTER, "CloseSession", Service).for_right(Right::Step),
    method(MASTER, "ListDevices", Service).for_right(Right::Step),
    method(MASTER, "Reset", Service).for_right(Right::Admin),
    method(MASTER, "MakeCallable", Unserved(NO_GRAPHS_MASTER)),
    method(MASTER, "RunCallable", Unserved(NO_GRAPHS_MASTER)),
    method(MASTER, "ReleaseCallable", Unserved(NO_GRAPHS_MASTER)),
    method("grpcxx.v1.Inspector", "Inspect", Service).for_right(Right::Admin),
    method(HEALTH, "Check", Observer),
    method(HEALTH, "Watch", Observer),
    method("grpc.reflection.v1.ServerReflection", REFLECTION, Observer).that_streams(),
    method(
        "grpc.reflection.v1alpha.ServerReflection",
        REFLECTION,
        Observer,
    )
    .that_streams(),
    method("tensorflow.eager.EagerService", ANY, Unserved(NO_EAGER)),
];

/// A method that anybody who may connect may call.
const fn method(service: &'static str, name: &'static str, class: Class) -> Method {
    Method {
        service,
        name,
        class,
        right: None,
        is_stream: false,
    }
}

impl Method {
    /// The method, for callers with a right.
    const fn for_right(self, right: Right) -> Self {
        Self {
            right: Some(right),
            ..self
        }
    }

    /// The method, which takes or answers with a stream.
    const fn that_streams(self) -> Self {
        Self {
            is_stream: true,
            ..self
        }
    }
}

/// Stands for every method of the services that the task's program has registered, but for those
/// that stream.
pub(crate) static REGISTERED: Method = method("registered", ANY, Registered).for_right(Right::Call);

/// Stands for those that stream.
pub(crate) static REGISTERED_STREAM: Method = method("registered", ANY, Registered)
    .for_right(Right::Call)
    .that_streams();

static UNKNOWN: Method = method("unknown", "unknown", Unserved(NO_SUCH_METHOD));

/// Stands for every method of a service.
const ANY: &str = "any";
const REFLECTION: &str = "ServerReflectionInfo";
const HEALTH: &str = "grpc.health.v1.Health";
const WORKER: &str = "tensorflow.WorkerService";
const MASTER: &str = "tensorflow.MasterService";

/// What a call that needs a graph executor on this task is answered with; the session answers the
/// same.
pub(crate) const NO_GRAPHS_MASTER: &str = "this server runs no graphs: run the session on a TensorFlow server (tf.distribute.Server with the grpcxx plugin and protocol=\"grpc++\"), or register a function in the server and call it with StarRunGraph (`grpcxx call`)";
const NO_GRAPHS_WORKER: &str = "this server runs no graphs: register a function in it and call that with StarRunGraph over the star port (`grpcxx call`), or place the graph on a TensorFlow server with the grpcxx plugin";
const NO_COLLECTIVES: &str = "this server takes no part in collectives: run them between TensorFlow servers with the grpcxx plugin, or exchange tensors with RecvTensor";
const NO_EAGER: &str = "this server runs no eager operations: connect to a TensorFlow server with the grpcxx plugin (protocol=\"grpc++\")";
const NO_TRACING: &str = "Tracing: no device traces are taken here; read the metrics page (--metrics-addr) or attach `perf` to the process";
const NO_SUCH_METHOD: &str = "no such method here; served are tensorflow.WorkerService, tensorflow.MasterService, grpc.health.v1.Health and gRPC reflection, which lists their methods";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_methods() {
        assert_eq!(find("/tensorflow.WorkerService/RecvTensor").class, Tensor);
        assert_eq!(find("/grpc.health.v1.Health/Check").class, Observer);
        assert_eq!(
            find("/tensorflow.eager.EagerService/CreateContext").class,
            Unserved(NO_EAGER)
        );
        for unknown in [
            "",
            "/",
            "RecvTensor",
            "/tensorflow.WorkerService/",
            "/a/b/c",
        ] {
            assert_eq!(find(unknown).name, "unknown", "{unknown}");
        }
    }

    #[test]
    fn every_method_of_the_services_has_a_row() {
        let descriptors = <prost_types::FileDescriptorSet as prost::Message>::decode(
            crate::services::DESCRIPTORS,
        )
        .unwrap();
        let mut methods = 0;
        for file in descriptors.file {
            for service in file.service {
                for method in &service.method {
                    let path = format!("/tensorflow.{}/{}", service.name(), method.name());
                    assert_ne!(find(&path).name, "unknown", "{path}");
                    methods += 1;
                }
            }
        }
        assert_eq!(methods, 27);
    }
}
