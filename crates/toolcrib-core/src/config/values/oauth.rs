//! How toolcrib asks for access to a remote server (OAuth).

use std::fmt;

/// The `oauth` table of a remote server. The default asks the user, by `toolcrib login`, as a client that registers
/// itself.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OauthConfig {
    /// The kind of access: in the name of a user, or of the client.
    pub grant: OauthGrant,
    /// The client, if it was registered beforehand.
    pub client_id: Option<String>,
    /// Its secret, if it has one.
    pub client_secret: Option<String>,
    /// Its private key as PEM, if it proves by signatures who it is (`private_key_jwt`).
    pub private_key: Option<String>,
    /// Scopes to ask for, in place of those that the server names.
    pub scopes: Vec<String>,
    /// The address of a document about the client (Client ID Metadata Document), for authorization servers that read it.
    pub client_metadata_url: Option<String>,
    /// The port of the loopback address to which the browser is sent back. `None`: any free one.
    pub redirect_port: Option<u16>,
    /// The authorization server that is trusted. `None`: the first one that the server names.
    pub issuer: Option<String>,
}

/// The kind of access to a remote server: in the name of a user, or of the client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OauthGrant {
    /// A user's, who agrees in a browser.
    #[default]
    AuthorizationCode,
    /// The client's own.
    ClientCredentials,
}

impl fmt::Debug for OauthConfig {
    /// Secrets are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OauthConfig")
            .field("grant", &self.grant)
            .field("client_id", &self.client_id)
            .field("client_secret", &self.client_secret.is_some())
            .field("private_key", &self.private_key.is_some())
            .field("scopes", &self.scopes)
            .field("client_metadata_url", &self.client_metadata_url)
            .field("redirect_port", &self.redirect_port)
            .field("issuer", &self.issuer)
            .finish()
    }
}
