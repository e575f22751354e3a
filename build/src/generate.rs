//! The code that is made of one service.

use std::fmt::Write;

use prost_build::{Comments, Method, Service, ServiceGenerator};

/// Writes trait, server and client of each service.
#[derive(Debug)]
pub(crate) struct Generator {
    /// Where the generated code finds what it stands on.
    runtime: String,
    /// The file of the descriptors, beside the generated code.
    descriptors: String,
    /// Whether futures and streams of methods may go from one thread to another.
    are_sent: bool,
}

impl Generator {
    pub(crate) fn new(runtime: String, descriptors: String, are_sent: bool) -> Self {
        Self {
            runtime,
            descriptors,
            are_sent,
        }
    }

    /// What the traits ask of futures and streams besides being those.
    fn send(&self) -> &'static str {
        match self.are_sent {
            true => " + ::core::marker::Send",
            false => "",
        }
    }

    /// The type of the code of an interceptor.
    fn code_of_interceptor(&self) -> String {
        let runtime = &self.runtime;
        let request = format!("{runtime}::Request<()>");
        format!(
            "impl ::core::ops::Fn({request})
            -> ::core::result::Result<{request}, {runtime}::Status>
            + ::core::marker::Send
            + ::core::marker::Sync
            + 'static"
        )
    }

    fn write_trait(&self, service: &Service, code: &mut String) {
        let (name, runtime, send) = (&service.name, &self.runtime, self.send());
        write_comments(&service.comments, "", code);
        line(
            code,
            format_args!("pub trait {name}: Send + Sync + 'static {{"),
        );
        for method in &service.methods {
            let Method {
                name,
                input_type,
                output_type,
                ..
            } = method;
            let input = match method.client_streaming {
                true => format!("{runtime}::Streaming<{input_type}>"),
                false => input_type.clone(),
            };
            let output = match method.server_streaming {
                true => format!("Self::{}", stream_type(method)),
                false => output_type.clone(),
            };
            if method.server_streaming {
                line(
                    code,
                    format_args!(
                        "    /// The messages that {proto_name} answers with.
    type {stream}: {runtime}::Stream<
        Item = ::core::result::Result<{output_type}, {runtime}::Status>,
    >{send} + 'static;
",
                        proto_name = method.proto_name,
                        stream = stream_type(method)
                    ),
                );
            }
            write_comments(&method.comments, "    ", code);
            line(
                code,
                format_args!(
                    "    fn {name}(\n        &self,\n        \
                     request: {runtime}::Request<{input}>,\n    \
                     ) -> impl ::core::future::Future<\n        Output = ::core::result::Result<\
                     {runtime}::Response<{output}>, {runtime}::Status>,\n    >{send};"
                ),
            );
        }
        line(code, format_args!("}}\n"));
    }

    fn write_server(&self, service: &Service, code: &mut String) {
        let (name, runtime) = (&service.name, &self.runtime);
        let path = full_name(service);
        let descriptors = &self.descriptors;
        let mutable = if service.methods.is_empty() {
            ""
        } else {
            "mut "
        };
        let place = match self.are_sent {
            true => format!("    place: {runtime}::Place,\n"),
            false => String::new(),
        };
        let (on_shards, made) = match self.are_sent {
            true => (
                format!("place: {runtime}::Place::Shard, "),
                "Methods::new(Self::NAME, descriptors, self.place)",
            ),
            false => (String::new(), "LocalMethods::new(Self::NAME, descriptors)"),
        };
        let code_of_interceptor = self.code_of_interceptor();
        let on_compute_pool = match self.are_sent {
            true => format!(
                "
    /// Runs the methods on the compute pool, where they may block.
    #[allow(dead_code)]
    #[must_use]
    pub fn on_compute_pool(self) -> Self {{
        Self {{ place: {runtime}::Place::ComputePool, ..self }}
    }}
"
            ),
            false => String::new(),
        };
        line(
            code,
            format_args!(
                "/// The service {path}, for an engine to serve.
#[derive(Debug)]
pub struct {name}Server<T> {{
    inner: ::std::sync::Arc<T>,
    interceptor: {runtime}::Interceptor,
{place}}}

impl<T: {name}> {name}Server<T> {{
    /// Serves this implementation on the shards.
    pub fn new(inner: T) -> Self {{
        Self::from_arc(::std::sync::Arc::new(inner))
    }}

    /// Serves this implementation, which others share, on the shards.
    pub fn from_arc(inner: ::std::sync::Arc<T>) -> Self {{
        Self {{ inner, {on_shards}interceptor: {runtime}::Interceptor::default() }}
    }}

    /// Serves this implementation on the shards, and lets this code see each request before.
    #[allow(dead_code)]
    pub fn with_interceptor(
        inner: T,
        interceptor: {code_of_interceptor},
    ) -> Self {{
        Self::new(inner).intercepted_by(interceptor)
    }}

    /// Lets this code see each request before the methods do, behind what was given before.
    #[allow(dead_code)]
    #[must_use]
    pub fn intercepted_by(
        self,
        interceptor: {code_of_interceptor},
    ) -> Self {{
        let interceptor = self.interceptor.then(interceptor);
        Self {{ interceptor, ..self }}
    }}
{on_compute_pool}}}

impl<T: {name}> {runtime}::TypedService for {name}Server<T> {{
    const NAME: &'static str = \"{path}\";

    fn into_methods(self) -> {runtime}::Methods {{
        let descriptors = include_bytes!(\"{descriptors}\");
        let {mutable}methods = {runtime}::{made}.with_interceptor(self.interceptor);"
            ),
        );
        for method in &service.methods {
            let (proto_name, name, input) = (&method.proto_name, &method.name, &method.input_type);
            let (kind, input) = match (method.client_streaming, method.server_streaming) {
                (false, false) => ("unary", input.clone()),
                (false, true) => ("server_stream", input.clone()),
                (true, false) => ("client_stream", format!("{runtime}::Streaming<{input}>")),
                (true, true) => ("two_streams", format!("{runtime}::Streaming<{input}>")),
            };
            line(
                code,
                format_args!(
                    "        let inner = ::std::sync::Arc::clone(&self.inner);
        methods =
            methods.{kind}(\"{proto_name}\", move |request: {runtime}::Request<{input}>| {{
                let inner = ::std::sync::Arc::clone(&inner);
                async move {{ inner.{name}(request).await }}
            }});"
                ),
            );
        }
        let methods = match self.are_sent {
            true => "methods",
            false => "methods.into()",
        };
        line(code, format_args!("        {methods}\n    }}\n}}\n"));
    }

    fn write_client(&self, service: &Service, code: &mut String) {
        let (name, runtime) = (&service.name, &self.runtime);
        let path = full_name(service);
        let code_of_interceptor = self.code_of_interceptor();
        line(
            code,
            format_args!(
                "/// Calls the service {path} of a task.
#[derive(Clone, Debug)]
pub struct {name}Client {{
    inner: {runtime}::ServiceClient,
}}

impl {name}Client {{
    /// Calls the service of this task.
    pub fn new(remote: {runtime}::Remote) -> Self {{
        Self {{ inner: {runtime}::ServiceClient::new(remote) }}
    }}

    /// Calls the service of this task, and lets this code see each request before it leaves.
    #[allow(dead_code)]
    pub fn with_interceptor(
        remote: {runtime}::Remote,
        interceptor: {code_of_interceptor},
    ) -> Self {{
        Self::new(remote).intercepted_by(interceptor)
    }}

    /// Lets this code see each request before it leaves, behind what was given before.
    #[allow(dead_code)]
    #[must_use]
    pub fn intercepted_by(
        self,
        interceptor: {code_of_interceptor},
    ) -> Self {{
        Self {{ inner: self.inner.intercepted_by(interceptor) }}
    }}"
            ),
        );
        for method in &service.methods {
            let Method {
                name,
                proto_name,
                input_type,
                output_type,
                ..
            } = method;
            line(code, format_args!(""));
            write_comments(&method.comments, "    ", code);
            let (into, call, made) = match (method.client_streaming, method.server_streaming) {
                (false, false) => ("IntoRequest", "UnaryCall", "unary"),
                (false, true) => ("IntoRequest", "StreamCall", "server_stream"),
                (true, false) => ("IntoStreamingRequest", "ClientStreamCall", "client_stream"),
                (true, true) => ("IntoStreamingRequest", "StreamCall", "two_streams"),
            };
            let request = match method.client_streaming {
                false => "request.into_request()",
                true => "request.into_streaming_request()",
            };
            line(
                code,
                format_args!(
                    "    pub fn {name}(
        &self,
        request: impl {runtime}::{into}<{input_type}>,
    ) -> {runtime}::{call}<{output_type}> {{
        self.inner.{made}(\"/{path}/{proto_name}\", {request})
    }}"
                ),
            );
        }
        line(code, format_args!("}}\n"));
    }
}

impl ServiceGenerator for Generator {
    fn generate(&mut self, service: Service, code: &mut String) {
        self.write_trait(&service, code);
        self.write_server(&service, code);
        self.write_client(&service, code);
        write_modules(&service, code);
    }
}

/// Offers what was made under the paths that it has with tonic, so that `use` lines stay.
fn write_modules(service: &Service, code: &mut String) {
    let name = &service.name;
    let module = snake_case(name);
    line(
        code,
        format_args!(
            "/// The trait and the server, where tonic has them.
pub mod {module}_server {{
    #[allow(unused_imports)]
    pub use super::{{{name}, {name}Server}};
}}

/// The client, where tonic has it.
pub mod {module}_client {{
    #[allow(unused_imports)]
    pub use super::{name}Client;
}}
"
        ),
    );
}

/// A name as tonic has it in names of modules.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// The associated type of what a method answers with.
fn stream_type(method: &Method) -> String {
    format!("{}Stream", method.proto_name)
}

fn full_name(service: &Service) -> String {
    match service.package.as_str() {
        "" => service.proto_name.clone(),
        package => format!("{package}.{}", service.proto_name),
    }
}

/// Repeats what the .proto file says, as text: it may hold what looks like code.
fn write_comments(comments: &Comments, indent: &str, code: &mut String) {
    if comments.leading.is_empty() {
        return line(code, format_args!("{indent}/// As the .proto file has it."));
    }
    for text in &comments.leading {
        line(code, format_args!("{indent}///{}", text.trim_end()));
    }
}

fn line(code: &mut String, text: std::fmt::Arguments<'_>) {
    code.write_fmt(text).expect("a string takes all texts");
    code.push('\n');
}
