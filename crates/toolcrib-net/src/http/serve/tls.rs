//! The certificate of a server of ours.

use std::{path::Path, sync::Arc};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::bounded;

/// Bytes of a file of certificates.
const LONGEST: u64 = 4 << 20;

fn read(file: &Path) -> Result<Vec<u8>, String> {
    bounded::read(file, LONGEST).map_err(|error| format!("{} cannot be used: {error}", file.display()))
}

/// The settings of a server with the certificates in `cert` and the key in `key`, both in PEM.
///
/// # Errors
/// What is wrong with them.
pub fn config(cert: &Path, key: &Path) -> Result<ServerConfig, String> {
    let unreadable = |file: &Path, error: rustls::pki_types::pem::Error| {
        format!("{} cannot be used: {error}", file.display())
    };
    let chain = CertificateDer::pem_slice_iter(&read(cert)?).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| unreadable(cert, error))?;
    if chain.is_empty() {
        return Err(format!("{} has no certificate", cert.display()));
    }
    let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| unreadable(key, error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|error| format!("{} and {} cannot be used: {error}", cert.display(), key.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
