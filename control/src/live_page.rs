use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::header::{REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response};
use http_body_util::Full;

/// The page that shows a task's numbers as graphs. It reads `/metrics` of where it came from, and
/// may load nothing else.
pub(crate) fn live_page() -> Response<Full<Bytes>> {
    let nonce = format!("{:032x}", u128::from_ne_bytes(random()));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = Response::new(Full::new(PAGE.replace("@NONCE@", &nonce).into()));
    let headers = response.headers_mut();
    let policy = HeaderValue::try_from(policy).expect("hexadecimal digits are allowed");
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Bytes that nobody guesses. Nothing of peers stands in the page, so one whose bytes can be
/// guessed, because the system has no random ones, lets nobody in either.
fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    let _ = getrandom::fill(&mut bytes);
    bytes
}

const PAGE: &str = include_str!("live.html");
