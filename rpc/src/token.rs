//! The token of a cluster: a shared key, and proofs that somebody has it which do not show it.

use std::fmt;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// A shared key. Who has it belongs to the cluster.
///
/// The key itself never travels: each end of a connection sends a number that is used once, and
/// proves the key by an HMAC-SHA256 over the numbers of both.
#[derive(Clone)]
pub struct Token(Hmac<Sha256>);

/// A number that its maker uses once, so that no proof is of use a second time.
pub type Nonce = [u8; 32];

/// What only who has the token can make.
pub type Proof = [u8; 32];

/// Which end of a connection proves the token. The two proofs differ, so that none can be sent back
/// to its maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prover {
    /// Who dialled.
    Client,
    /// Who was dialled.
    Server,
}

/// What a proof is about, besides the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The client's number.
    pub client: Nonce,
    /// The server's number.
    pub server: Nonce,
    /// The incarnation of the server, which tells this run of it from every other.
    pub incarnation: u64,
}

/// Why something is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a token of {found} bytes, allowed are {KEY_BYTES_MIN} to {KEY_BYTES_MAX}; make one with \
     `openssl rand -hex 32`"
)]
pub struct TokenLength {
    found: usize,
}

/// Why a gRPC call that names the token is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCallProof {
    /// It is not what a proof looks like.
    #[error(
        "authorization is not \"GRPCXX <unix seconds>:<HMAC-SHA256 in hexadecimal>\", made with \
         the token of this task (GRPCXX_TOKEN_FILE)"
    )]
    Form,
    /// It was made long ago, or lies in the future.
    #[error(
        "authorization was made {0} s from the clock of this task, allowed are {window}; set the \
         clocks of both machines",
        window = CALL_PROOF_WINDOW.as_secs()
    )]
    Time(u64),
    /// It was made with another token, or for another method.
    #[error(
        "authorization was made with another token, or for another method; give both ends the \
         same GRPCXX_TOKEN_FILE"
    )]
    Key,
}

impl Token {
    /// The token with this key.
    ///
    /// # Errors
    /// The key is too short to keep anybody out, or too long to be meant.
    pub fn new(key: &[u8]) -> Result<Self, TokenLength> {
        let found = key.len();
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&found) {
            return Err(TokenLength { found });
        }
        let keyed = Hmac::new_from_slice(key).map_err(|_| TokenLength { found })?;
        Ok(Self(keyed))
    }

    /// Proves the token on a connection.
    pub fn prove(&self, prover: Prover, challenge: &Challenge) -> Proof {
        self.over(prover, challenge).finalize().into_bytes().into()
    }

    /// Whether a proof of the other end is right. Takes the same time for each wrong one.
    pub fn verifies(&self, prover: Prover, challenge: &Challenge, proof: &Proof) -> bool {
        self.over(prover, challenge).verify_slice(proof).is_ok()
    }

    /// What the metadata `authorization` of a gRPC call says: `GRPCXX`, the time in seconds since
    /// 1970, and an HMAC over time and path of the method.
    pub fn prove_call(&self, path: &str, now: Duration) -> String {
        let seconds = now.as_secs();
        let proof: Proof = self.over_call(path, seconds).finalize().into_bytes().into();
        let mut text = format!("{CALL_SCHEME} {seconds}:");
        for byte in proof {
            text.extend([byte >> 4, byte & 15].map(hex_digit));
        }
        text
    }

    /// Whether metadata `authorization` of a gRPC call claim to prove a token, and are no proof of
    /// something else, such as a bearer's.
    pub fn is_call_proof(authorization: &str) -> bool {
        let scheme = authorization.split(' ').next().unwrap_or_default();
        scheme.eq_ignore_ascii_case(CALL_SCHEME)
    }

    /// Checks the metadata `authorization` of a gRPC call.
    ///
    /// # Errors
    /// Why it is not believed.
    pub fn verify_call(
        &self,
        path: &str,
        authorization: &str,
        now: Duration,
    ) -> Result<(), BadCallProof> {
        let (scheme, proof) = authorization.split_once(' ').ok_or(BadCallProof::Form)?;
        let (seconds, proof) = proof.split_once(':').ok_or(BadCallProof::Form)?;
        if !scheme.eq_ignore_ascii_case(CALL_SCHEME) {
            return Err(BadCallProof::Form);
        }
        let seconds = seconds.parse().map_err(|_| BadCallProof::Form)?;
        let proof = from_hex(proof).ok_or(BadCallProof::Form)?;
        (self.over_call(path, seconds).verify_slice(&proof)).map_err(|_| BadCallProof::Key)?;
        let apart = now.as_secs().abs_diff(seconds);
        if apart > CALL_PROOF_WINDOW.as_secs() {
            return Err(BadCallProof::Time(apart));
        }
        Ok(())
    }

    fn over(&self, prover: Prover, challenge: &Challenge) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(match prover {
            Prover::Client => CLIENT_LABEL,
            Prover::Server => SERVER_LABEL,
        });
        mac.update(&challenge.client);
        mac.update(&challenge.server);
        mac.update(&challenge.incarnation.to_le_bytes());
        mac
    }

    fn over_call(&self, path: &str, seconds: u64) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(format!("{CALL_LABEL}{seconds}\n{path}").as_bytes());
        mac
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

fn hex_digit(digit: u8) -> char {
    char::from_digit(digit.into(), 16).expect("a digit is below 16")
}

fn from_hex(text: &str) -> Option<Proof> {
    let digits: Vec<u32> = (text.len() == 2 * size_of::<Proof>())
        .then(|| text.chars().map(|digit| digit.to_digit(16)).collect())
        .flatten()?;
    let mut proof = [0; size_of::<Proof>()];
    for (byte, pair) in proof.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::try_from(pair[0] * 16 + pair.get(1)?).ok()?;
    }
    Some(proof)
}

/// Shortest key: what cannot be guessed.
const KEY_BYTES_MIN: usize = 16;

/// Longest key: a file that is longer is another one.
const KEY_BYTES_MAX: usize = 4096;

/// How far the clocks of two machines may be apart, and how long a recorded gRPC call can be made
/// again.
pub const CALL_PROOF_WINDOW: Duration = Duration::from_secs(60);

const CALL_SCHEME: &str = "GRPCXX";
const CALL_LABEL: &str = "grpcxx token grpc\n";
const CLIENT_LABEL: &[u8] = b"grpcxx token client\n";
const SERVER_LABEL: &[u8] = b"grpcxx token server\n";

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"sixteen bytes at least";

    fn challenge() -> Challenge {
        Challenge {
            client: [1; 32],
            server: [2; 32],
            incarnation: 3,
        }
    }

    #[test]
    fn a_proof_is_of_one_end_one_connection_one_run_and_one_key() {
        let token = Token::new(KEY).unwrap();
        let proof = token.prove(Prover::Client, &challenge());
        assert!(token.verifies(Prover::Client, &challenge(), &proof));
        assert!(!token.verifies(Prover::Server, &challenge(), &proof));
        let others = [
            Challenge {
                client: [9; 32],
                ..challenge()
            },
            Challenge {
                server: [9; 32],
                ..challenge()
            },
            Challenge {
                incarnation: 9,
                ..challenge()
            },
        ];
        for other in others {
            assert!(!token.verifies(Prover::Client, &other, &proof));
        }
        let other = Token::new(b"another key of enough bytes").unwrap();
        assert!(!other.verifies(Prover::Client, &challenge(), &proof));
    }

    #[test]
    fn proofs_are_those_of_any_other_hmac() {
        // python3: hmac.new(KEY, label + client + server + incarnation, "sha256").hexdigest()
        let token = Token::new(KEY).unwrap();
        let proof = token.prove(Prover::Client, &challenge());
        assert_eq!(from_hex(CLIENT_PROOF), Some(proof));
        let call = token.prove_call("/a.B/C", Duration::from_secs(5));
        assert_eq!(call, format!("GRPCXX 5:{CALL_PROOF}"));
    }

    #[test]
    fn keys_that_can_be_guessed_are_refused() {
        let refused = Token::new(b"secret").unwrap_err().to_string();
        assert!(
            refused.contains("6 bytes, allowed are 16 to 4096"),
            "{refused}"
        );
        assert!(Token::new(&[0; 4097]).is_err() && Token::new(&[0; 4096]).is_ok());
        assert_eq!(format!("{:?}", Token::new(KEY).unwrap()), "Token");
    }

    #[test]
    fn a_proof_of_a_call_is_of_one_method_and_a_short_while() {
        let token = Token::new(KEY).unwrap();
        let made = token.prove_call("/a.B/C", Duration::from_secs(1000));
        let check = |path, seconds| token.verify_call(path, &made, Duration::from_secs(seconds));
        assert_eq!(check("/a.B/C", 1000), Ok(()));
        assert_eq!(check("/a.B/C", 1060), Ok(()));
        assert_eq!(check("/a.B/C", 940), Ok(()));
        assert_eq!(check("/a.B/C", 1061), Err(BadCallProof::Time(61)));
        assert_eq!(check("/a.B/D", 1000), Err(BadCallProof::Key));
    }

    #[test]
    fn what_is_no_proof_of_a_call_says_so() {
        let token = Token::new(KEY).unwrap();
        let zeros = "0".repeat(64);
        let cases = [
            String::new(),
            "Bearer x".to_owned(),
            "GRPCXX 5".to_owned(),
            format!("Bearer 5:{zeros}"),
            format!("GRPCXX -5:{zeros}"),
            format!("GRPCXX 5:{}", &zeros[1..]),
            format!("GRPCXX 5:\u{e4}{}", &zeros[2..]),
        ];
        for text in cases {
            let found = token.verify_call("/a.B/C", &text, Duration::from_secs(5));
            assert_eq!(found, Err(BadCallProof::Form), "{text}");
        }
        let found = token.verify_call("/a.B/C", &format!("grpcxx 5:{zeros}"), Duration::ZERO);
        assert_eq!(found, Err(BadCallProof::Key));
    }

    const CLIENT_PROOF: &str = "03896fd3cc67ce819e8261946468dfd9e2298f51b64df97b246f65f744e9ac01";
    const CALL_PROOF: &str = "a07ce7d41601d7a38936ef8528a73bcf6c2c1a1206d0a2a1b884ba4da900273e";
}
