//! TLS without global state: the ring provider and the system's certificates, which are read from disk only when
//! the first encrypted connection is made. A machine without certificates can still talk to its loopback.

use std::sync::{Arc, OnceLock};

use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use rustls_platform_verifier::Verifier;

/// A client configuration, made when it is needed. Clones share it with its certificates.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedTlsConfig(Arc<OnceLock<ClientConfig>>);

impl SharedTlsConfig {
    /// For connections that may speak these protocols, by their names in RFC 7301.
    pub(super) fn offering(&self, protocols: &[&str]) -> ClientConfig {
        let mut config = self.0.get_or_init(config).clone();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }
}

fn config() -> ClientConfig {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(SystemVerifier { provider: Arc::clone(&provider), loaded: OnceLock::new() });
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has what the default versions need")
        // "Dangerous" is any verifier but a fixed list; this one is the system's own.
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth()
}

/// The platform's verifier, created at the first handshake. Creating it takes milliseconds that commands without
/// encrypted traffic need not pay, and fails where no certificates are installed.
#[derive(Debug)]
struct SystemVerifier {
    provider: Arc<CryptoProvider>,
    loaded: OnceLock<Result<Verifier, Error>>,
}

impl SystemVerifier {
    fn get(&self) -> Result<&Verifier, Error> {
        let loaded = self.loaded.get_or_init(|| Verifier::new(Arc::clone(&self.provider)));
        loaded.as_ref().map_err(Clone::clone)
    }
}

impl ServerCertVerifier for SystemVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.get()?.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.get()?.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.get()?.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
