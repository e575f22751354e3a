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
}

impl Generator {
    pub(crate) fn new(runtime: String, descriptors: String) -> Self {
        Self {
            runtime,
            descriptors,
        }
    }

    fn write_trait(&self, service: &Service, code: &mut String) {
        let (name, runtime) = (&service.name, &self.runtime);
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
            write_comments(&method.comments, "    ", code);
            line(
                code,
                format_args!(
                    "    fn {name}(\n        &self,\n        \
                     request: {runtime}::Request<{input_type}>,\n    \
                     ) -> impl ::core::future::Future<\n        Output = ::core::result::Result<\
                     {runtime}::Response<{output_type}>, {runtime}::Status>,\n    >;"
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
        line(
            code,
            format_args!(
                "/// The service {path}, for an engine to serve.
#[derive(Debug)]
pub struct {name}Server<T> {{
    inner: ::std::sync::Arc<T>,
    place: {runtime}::Place,
}}

impl<T: {name}> {name}Server<T> {{
    /// Serves this implementation on the shards.
    pub fn new(inner: T) -> Self {{
        Self::from_arc(::std::sync::Arc::new(inner))
    }}

    /// Serves this implementation, which others share, on the shards.
    pub fn from_arc(inner: ::std::sync::Arc<T>) -> Self {{
        Self {{ inner, place: {runtime}::Place::Shard }}
    }}

    /// Runs the methods on the compute pool, where they may block.
    #[must_use]
    pub fn on_compute_pool(self) -> Self {{
        Self {{ place: {runtime}::Place::ComputePool, ..self }}
    }}
}}

impl<T: {name}> {runtime}::TypedService for {name}Server<T> {{
    const NAME: &'static str = \"{path}\";

    fn into_methods(self) -> {runtime}::Methods {{
        let descriptors = include_bytes!(\"{descriptors}\");
        let {mutable}methods = {runtime}::Methods::new(Self::NAME, descriptors, self.place);"
            ),
        );
        for method in &service.methods {
            let (proto_name, name, input) = (&method.proto_name, &method.name, &method.input_type);
            line(
                code,
                format_args!(
                    "        let inner = ::std::sync::Arc::clone(&self.inner);
        methods =
            methods.unary(\"{proto_name}\", move |request: {runtime}::Request<{input}>| {{
                let inner = ::std::sync::Arc::clone(&inner);
                async move {{ inner.{name}(request).await }}
            }});"
                ),
            );
        }
        line(code, format_args!("        methods\n    }}\n}}\n"));
    }

    fn write_client(&self, service: &Service, code: &mut String) {
        let (name, runtime) = (&service.name, &self.runtime);
        let path = full_name(service);
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
            line(
                code,
                format_args!(
                    "    pub fn {name}(
        &self,
        request: impl {runtime}::IntoRequest<{input_type}>,
    ) -> {runtime}::UnaryCall<{output_type}> {{
        self.inner.unary(\"/{path}/{proto_name}\", request.into_request())
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
    }
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
