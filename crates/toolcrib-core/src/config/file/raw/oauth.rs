//! The `oauth` table of a remote server as written.

use super::super::{section::Section, source_location::Text};
use crate::{config::OauthGrant, error::Result};

pub(super) const OAUTH: &[&str] = &[
    "grant",
    "client_id",
    "client_secret",
    "private_key_file",
    "client_metadata_url",
    "scopes",
    "issuer",
    "redirect_port",
];

/// How access is asked for, with the variables not yet put in.
#[derive(Debug)]
pub(in crate::config) struct RawOauth {
    pub(in crate::config) grant: OauthGrant,
    pub(in crate::config) client_id: Option<Text>,
    pub(in crate::config) client_secret: Option<Text>,
    pub(in crate::config) private_key_file: Option<Text>,
    pub(in crate::config) client_metadata_url: Option<Text>,
    pub(in crate::config) scopes: Vec<Text>,
    pub(in crate::config) issuer: Option<Text>,
    pub(in crate::config) redirect_port: Option<u16>,
}

/// Reads the table of the server `table`, if it has one.
pub(super) fn read(table: &Section<'_>) -> Result<Option<Box<RawOauth>>> {
    const GRANTS: &[(&str, OauthGrant)] = &[
        ("authorization_code", OauthGrant::AuthorizationCode),
        ("client_credentials", OauthGrant::ClientCredentials),
    ];
    let Some(oauth) = table.table("oauth", OAUTH)? else { return Ok(None) };
    let header = table.text_map("headers")?;
    if header.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
        let help = "remove one of them: the header is sent as it is";
        return Err(table.key_error("oauth", "has no effect beside the header `Authorization`", Some(help)));
    }
    let grant = oauth.choice("grant", GRANTS)?.unwrap_or_default();
    let exclusive = [("client_secret", "private_key_file"), ("client_metadata_url", "client_id")];
    if let Some((first, second)) =
        exclusive.into_iter().find(|(first, second)| oauth.has(first) && oauth.has(second))
    {
        let message = format!("`{first}` and `{second}` exclude each other");
        return Err(oauth.key_error(first, message, Some("keep one of them")));
    }
    let proof = ["client_secret", "private_key_file"].into_iter().find(|key| oauth.has(key));
    if let Some(proof) = proof.filter(|_| !oauth.has("client_id")) {
        let help = Some("add the `client_id` that it belongs to");
        return Err(oauth.key_error(proof, "needs a `client_id`", help));
    }
    if grant == OauthGrant::ClientCredentials {
        if proof.is_none() {
            let help = "add `client_id`, and `client_secret` or `private_key_file`";
            return Err(oauth.key_error("grant", "needs a client that can prove who it is", Some(help)));
        }
        if oauth.has("redirect_port") {
            let message = "has no effect with `client_credentials`: there is no browser";
            return Err(oauth.key_error("redirect_port", message, Some("remove it")));
        }
    }
    Ok(Some(Box::new(RawOauth {
        grant,
        client_id: oauth.text("client_id")?,
        client_secret: oauth.text("client_secret")?,
        private_key_file: oauth.text("private_key_file")?,
        client_metadata_url: oauth.text("client_metadata_url")?,
        scopes: oauth.texts("scopes")?,
        issuer: oauth.text("issuer")?,
        redirect_port: oauth.number("redirect_port", 1)?,
    })))
}
