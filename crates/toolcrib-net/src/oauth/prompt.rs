//! How a user comes to agree: the library gives an address, and gets the address to which the browser was sent back.

use futures_util::future::BoxFuture;

use crate::tool::ServerName;

/// Brings a user to an authorization server and back. `toolcrib login` opens a browser; a program that has the library
/// inside can do it in its own way, see
/// `StartOptions::authorization_prompt`.
///
/// ```
/// # mod toolcrib { pub use {toolcrib_core::*, toolcrib_net::*}; }
/// use futures_util::future::{BoxFuture, FutureExt};
/// use toolcrib::oauth::{AuthorizationPrompt, AuthorizationRequest};
///
/// struct AskOnTerminal;
///
/// impl AuthorizationPrompt for AskOnTerminal {
///     fn redirect_uri(&self) -> String {
///         "http://127.0.0.1:8765/callback".to_owned()
///     }
///
///     fn authorize(&self, request: AuthorizationRequest) -> BoxFuture<'_, Result<String, String>> {
///         async move {
///             println!("open {} and paste the address that you end up at", request.url);
///             let mut line = String::new();
///             std::io::stdin().read_line(&mut line).map_err(|error| error.to_string())?;
///             Ok(line.trim().to_owned())
///         }
///         .boxed()
///     }
/// }
/// ```
pub trait AuthorizationPrompt: Send + Sync {
    /// The address to which the authorization server sends the browser back. It may have to be registered beforehand.
    fn redirect_uri(&self) -> String;

    /// Sends the user to the address of `request`, and waits for the whole address to which the browser was sent back.
    /// Its contents are checked by the caller. The future is dropped when the work for which the access is needed is
    /// given up: the start of a server has a limit, `startup_timeout`.
    ///
    /// # Errors
    /// Why there is no such address, in words.
    fn authorize(&self, request: AuthorizationRequest) -> BoxFuture<'_, Result<String, String>>;
}

/// The question to a user.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AuthorizationRequest {
    /// The server that access is asked for.
    pub server: ServerName,
    /// The address to open in a browser. It holds no secret.
    pub url: String,
    /// The authorization server.
    pub issuer: String,
    /// The scopes that are asked for.
    pub scopes: Vec<String>,
    /// The value that the answer has to hold as `state`.
    pub(super) state: String,
}

impl AuthorizationRequest {
    /// Whether an address is the answer to this request, and not to another one or to none.
    pub fn is_answered_by(&self, address: &str) -> bool {
        let query = address.split_once('?').map_or("", |(_, query)| query);
        let query = query.split('#').next().unwrap_or_default();
        url::form_urlencoded::parse(query.as_bytes())
            .any(|(name, value)| name == "state" && value == self.state.as_str())
    }
}
