use std::fmt;
use std::str::FromStr;

/// The server types of TensorFlow and DeepRec, by their names in `ServerDef.protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// `grpc++`: star between all tasks.
    GrpcPlusPlus,
    /// `grpc`: TensorFlow's own worker service between all tasks.
    Grpc,
    /// `star_server`: star, with parts of graphs that run on the ps. What it names was
    /// `star_server_v2` in earlier releases, where `star_server` was today's `star_server_lite`.
    StarServer,
    /// `star_server_lite`, of later releases.
    StarServerLite,
    /// `star_server_v2`, of earlier releases.
    StarServerV2,
}

/// A protocol name that is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownProtocol {
    /// `star`, which looks like one.
    #[error(
        "protocol `star` is not registered, by DeepRec neither; write `grpc++`, or `star_server` for parts of graphs on the ps"
    )]
    Star,
    /// Anything else.
    #[error(
        "protocol `{0}` is unknown; write one of grpc++, grpc, star_server, star_server_lite, star_server_v2"
    )]
    Other(String),
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Self; 5] = [
        Self::GrpcPlusPlus,
        Self::Grpc,
        Self::StarServer,
        Self::StarServerLite,
        Self::StarServerV2,
    ];

    /// The name in `ServerDef.protocol`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GrpcPlusPlus => "grpc++",
            Self::Grpc => "grpc",
            Self::StarServer => "star_server",
            Self::StarServerLite => "star_server_lite",
            Self::StarServerV2 => "star_server_v2",
        }
    }

    /// Whether tasks speak star with each other.
    pub const fn speaks_star(self) -> bool {
        !matches!(self, Self::Grpc)
    }

    /// Whether the ps runs parts of graphs (`StarRunGraph`).
    pub const fn runs_graphs_on_ps(self) -> bool {
        matches!(
            self,
            Self::StarServer | Self::StarServerLite | Self::StarServerV2
        )
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Protocol {
    type Err = UnknownProtocol;

    fn from_str(text: &str) -> Result<Self, UnknownProtocol> {
        if text == "star" {
            return Err(UnknownProtocol::Star);
        }
        Self::ALL
            .into_iter()
            .find(|protocol| protocol.name() == text)
            .ok_or_else(|| UnknownProtocol::Other(text.chars().take(64).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checklist_23_protocol_names() {
        for protocol in Protocol::ALL {
            assert_eq!(protocol.to_string().parse(), Ok(protocol));
        }
        assert!(
            "star_server_v2"
                .parse::<Protocol>()
                .unwrap()
                .runs_graphs_on_ps()
        );
        assert!("grpc++".parse::<Protocol>().unwrap().speaks_star());
        assert!(!Protocol::Grpc.speaks_star());
    }

    #[test]
    fn checklist_23_star_is_refused() {
        let error = "star".parse::<Protocol>().unwrap_err();
        assert!(error.to_string().contains("write `grpc++`"), "{error}");
        for text in ["", "GRPC++", "grpc+verbs", "star_server "] {
            let error = text.parse::<Protocol>().unwrap_err();
            assert!(error.to_string().contains("write one of grpc++, grpc"));
        }
    }
}
