//! Keys of an authorization server, and tokens that are signed with them, right or wrong.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    rsa::{KeyPair as RsaKeyPair, PublicKeyComponents},
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
        KeyPair as _, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
    },
};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject as _};
use serde_json::{Value, json};

/// A key, with its id and its algorithm.
pub(crate) struct Signer {
    pub(crate) id: String,
    pub(crate) algorithm: &'static str,
    key: Key,
}

enum Key {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Claims of a valid token.
pub(crate) fn claims(issuer: &str, audience: &str) -> Value {
    json!({
        "iss": issuer, "sub": "user-1", "aud": audience, "client_id": "client-1", "iat": now(), "exp": now() + 3600,
    })
}

pub(crate) fn encoded(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    pub(crate) fn new(id: &str, algorithm: &'static str) -> Self {
        let random = SystemRandom::new();
        let curve = |curve| {
            let document = EcdsaKeyPair::generate_pkcs8(curve, &random).unwrap();
            Key::Ec(EcdsaKeyPair::from_pkcs8(curve, document.as_ref(), &random).unwrap())
        };
        let key = match algorithm {
            "ES256" => curve(&ECDSA_P256_SHA256_FIXED_SIGNING),
            "ES384" => curve(&ECDSA_P384_SHA384_FIXED_SIGNING),
            "EdDSA" => {
                let document = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
                Key::Ed(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
            }
            _ => {
                let der = PrivatePkcs8KeyDer::from_pem_slice(include_bytes!("rsa_test_key.pem")).unwrap();
                Key::Rsa(RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).unwrap())
            }
        };
        Self { id: id.to_owned(), algorithm, key }
    }

    /// The public half.
    pub(crate) fn jwk(&self) -> Value {
        let mut jwk = match &self.key {
            Key::Rsa(key) => {
                let public: PublicKeyComponents<Vec<u8>> = key.public().into();
                json!({"kty": "RSA", "n": encoded(public.n), "e": encoded(public.e)})
            }
            Key::Ec(key) => {
                let point = &key.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let curve = if self.algorithm == "ES256" { "P-256" } else { "P-384" };
                json!({"kty": "EC", "crv": curve, "x": encoded(x), "y": encoded(y)})
            }
            Key::Ed(key) => json!({"kty": "OKP", "crv": "Ed25519", "x": encoded(key.public_key())}),
        };
        jwk["kid"] = json!(self.id);
        jwk["use"] = json!("sig");
        jwk["alg"] = json!(self.algorithm);
        jwk
    }

    /// A token with these claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.signed(&json!({"alg": self.algorithm, "kid": self.id, "typ": "at+jwt"}), claims)
    }

    /// The same with another head, whatever it says.
    pub(crate) fn signed(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
        let random = SystemRandom::new();
        let signature = match &self.key {
            Key::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                let padding: &dyn ring::signature::RsaEncoding =
                    if self.algorithm == "PS256" { &RSA_PSS_SHA256 } else { &RSA_PKCS1_SHA256 };
                key.sign(padding, &random, message.as_bytes(), &mut signature).unwrap();
                signature
            }
            Key::Ec(key) => key.sign(&random, message.as_bytes()).unwrap().as_ref().to_vec(),
            Key::Ed(key) => key.sign(message.as_bytes()).as_ref().to_vec(),
        };
        format!("{message}.{}", encoded(signature))
    }

    /// The public half of the key, which somebody could take for a secret.
    pub(crate) fn public_bytes(&self) -> Vec<u8> {
        match &self.key {
            Key::Rsa(key) => key.public().as_ref().to_vec(),
            Key::Ec(key) => key.public_key().as_ref().to_vec(),
            Key::Ed(key) => key.public_key().as_ref().to_vec(),
        }
    }
}

/// A token that is signed with a shared secret.
pub(crate) fn with_secret(secret: &[u8], claims: &Value) -> String {
    let header = json!({"alg": "HS256", "typ": "at+jwt"});
    let message = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
    let signature = ring::hmac::sign(&key, message.as_bytes());
    format!("{message}.{}", encoded(signature))
}
