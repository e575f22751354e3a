use thiserror::Error;

/// Where spans go, and under which name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The collector's address for OTLP over gRPC, such as `http://127.0.0.1:4317`.
    pub endpoint: String,
    /// What the process is called in traces.
    pub service_name: String,
}

/// A variable that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name} is {found:?}; {allowed}")]
pub struct BadSetting {
    /// The variable.
    pub name: &'static str,
    /// Its value.
    pub found: String,
    /// What may be there.
    pub allowed: &'static str,
}

impl Settings {
    /// Spans go to `endpoint`, from a process called `service_name`.
    pub fn new(endpoint: impl Into<String>, service_name: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            service_name: service_name.into(),
        }
    }

    /// The settings in OpenTelemetry's own variables, of which `lookup` knows the values.
    /// `None` if no endpoint is named, `OTEL_SDK_DISABLED` is true or `OTEL_TRACES_EXPORTER` is
    /// none: then nobody traces.
    ///
    /// # Errors
    /// A variable has a value that cannot be followed. It may be meant for another program, so it
    /// is no reason for this one not to run.
    pub fn from_lookup(
        lookup: impl Fn(&str) -> Option<String>,
        default_name: &str,
    ) -> Result<Option<Self>, BadSetting> {
        let told = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let first = |names: [&'static str; 2]| {
            let mut names = names.into_iter();
            names.find_map(|name| Some((name, told(name)?)))
        };
        let is_disabled = told(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let exporter = told(EXPORTER).unwrap_or_else(|| "otlp".to_owned());
        let Some((name, endpoint)) = first([TRACES_ENDPOINT, ENDPOINT])
            .filter(|_| !is_disabled && exporter.trim() != "none")
        else {
            return Ok(None);
        };
        let refused = |name, found, allowed| BadSetting {
            name,
            found,
            allowed,
        };
        if !exporter
            .split(',')
            .any(|exporter| exporter.trim() == "otlp")
        {
            return Err(refused(EXPORTER, exporter, "allowed are otlp and none"));
        }
        if !endpoint.starts_with("http://") {
            let allowed = "write http://HOST:PORT; spans go over gRPC without TLS, to a collector \
                           on this host or in a trusted network";
            return Err(refused(name, endpoint, allowed));
        }
        if let Some((name, found)) = first([TRACES_PROTOCOL, PROTOCOL])
            && found != "grpc"
        {
            let allowed = "allowed is grpc, at port 4317 of most collectors";
            return Err(refused(name, found, allowed));
        }
        let service_name = told(SERVICE_NAME).unwrap_or_else(|| default_name.to_owned());
        Ok(Some(Self::new(endpoint, service_name)))
    }
}

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const TRACES_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
const DISABLED: &str = "OTEL_SDK_DISABLED";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, BadSetting> {
        let lookup = |name: &str| {
            let found = variables.iter().find(|(told, _)| *told == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::from_lookup(lookup, "grpcxx-server")
    }

    #[test]
    fn nobody_traces_unless_an_endpoint_is_named() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[(ENDPOINT, "")]), Ok(None));
        assert_eq!(
            read(&[(ENDPOINT, "http://a:1"), (DISABLED, "true")]),
            Ok(None)
        );
        assert_eq!(
            read(&[(ENDPOINT, "https://a:1"), (EXPORTER, "none")]),
            Ok(None)
        );
    }

    #[test]
    fn variables_of_traces_win() {
        let settings = read(&[
            (ENDPOINT, "http://a:1"),
            (TRACES_ENDPOINT, "http://b:2"),
            (SERVICE_NAME, "ps"),
        ]);
        assert_eq!(settings, Ok(Some(Settings::new("http://b:2", "ps"))));
    }

    #[test]
    fn what_cannot_be_followed_is_named() {
        let error = read(&[(ENDPOINT, "https://a:1")]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("OTEL_EXPORTER_OTLP_ENDPOINT is \"https://a:1\"")
        );
        let error = read(&[(ENDPOINT, "http://a:1"), (PROTOCOL, "http/json")]).unwrap_err();
        assert_eq!(error.name, PROTOCOL);
        let error = read(&[(ENDPOINT, "http://a:1"), (EXPORTER, "zipkin")]).unwrap_err();
        assert_eq!(error.name, EXPORTER);
        let both = read(&[(ENDPOINT, "http://a:1"), (EXPORTER, "console, otlp")]);
        assert!(both.unwrap().is_some());
    }
}
