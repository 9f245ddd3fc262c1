//! Random values, and the assertion by which a client with a private key proves who it is (RFC 7523). The algorithms are
//! those of the crypto library that encrypts connections.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use rustls::{
    SignatureScheme,
    crypto::ring,
    pki_types::{PrivateKeyDer, pem::PemObject},
};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::error::OauthError;

/// How long an assertion counts.
const LIFE: u64 = 120;

/// The algorithms by their names in RFC 7518 and RFC 8037, the preferred one first.
const ALGORITHMS: [(&str, SignatureScheme); 4] = [
    ("ES256", SignatureScheme::ECDSA_NISTP256_SHA256),
    ("ES384", SignatureScheme::ECDSA_NISTP384_SHA384),
    ("EdDSA", SignatureScheme::ED25519),
    ("RS256", SignatureScheme::RSA_PKCS1_SHA256),
];

/// 256 random bits as text.
pub(super) fn random() -> Result<String, OauthError> {
    let mut bytes = [0; 32];
    ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| OauthError::unusable("this machine gives no random numbers"))?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

/// The challenge for a PKCE verifier, by the method S256 (RFC 7636).
pub(super) fn code_challenge(verifier: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier))
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// An assertion of the client `client` for the authorization server `issuer`, signed with the key `pem` by one of the
/// algorithms that the server `accepts`.
pub(super) fn assertion(
    pem: &str,
    client: &str,
    issuer: &str,
    accepts: Option<&[String]>,
) -> Result<String, OauthError> {
    let unusable = |why: String| {
        OauthError::unusable(format!("the private key {why}"))
            .help("give `private_key_file` an EC key (P-256), an Ed25519 or an RSA key as PKCS #8")
    };
    let der =
        PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| unusable("cannot be read".to_owned()))?;
    let key = ring::sign::any_supported_type(&der).map_err(|_| unusable("is of no known kind".to_owned()))?;
    let accepted = |name: &str| accepts.is_none_or(|accepts| accepts.iter().any(|accepted| accepted == name));
    let mut usable = ALGORITHMS.into_iter().filter(|(name, _)| accepted(name));
    let (name, signer) = usable
        .find_map(|(name, scheme)| Some((name, key.choose_scheme(&[scheme])?)))
        .ok_or_else(|| unusable("is for no algorithm that the authorization server accepts".to_owned()))?;
    let now = now();
    let header = json!({"alg": name, "typ": "JWT"});
    let claims = json!({
        "iss": client, "sub": client, "aud": issuer, "iat": now, "exp": now + LIFE, "jti": random()?,
    });
    let encode = |text: String| BASE64_URL_SAFE_NO_PAD.encode(text);
    let signed = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
    let failed = || unusable("cannot sign".to_owned());
    let signature = signer.sign(signed.as_bytes()).map_err(|_| failed())?;
    let signature = match name {
        "ES256" => joined(&signature, 32).ok_or_else(failed)?,
        "ES384" => joined(&signature, 48).ok_or_else(failed)?,
        _ => signature,
    };
    Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

/// The two numbers of an ECDSA signature in ASN.1, `size` bytes each, as RFC 7518 has them.
fn joined(signature: &[u8], size: usize) -> Option<Vec<u8>> {
    let (numbers, rest) = element(signature, 0x30)?;
    let (first, numbers) = element(numbers, 0x02)?;
    let (second, numbers) = element(numbers, 0x02)?;
    let mut both = Vec::with_capacity(2 * size);
    for number in [first, second] {
        let number = number.strip_prefix(&[0]).unwrap_or(number);
        both.extend(std::iter::repeat_n(0, size.checked_sub(number.len())?));
        both.extend_from_slice(number);
    }
    (rest.is_empty() && numbers.is_empty()).then_some(both)
}

/// The content of an element that is shorter than 128 bytes, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, length], rest) = bytes.split_first_chunk::<2>()?;
    (found == tag && length < 128).then(|| rest.split_at_checked(length.into())).flatten()
}

#[cfg(test)]
mod tests {
    use rcgen::KeyPair;
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_challenge_is_that_of_rfc_7636() {
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        assert_eq!(code_challenge(verifier), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
        assert_ne!(random().unwrap(), random().unwrap());
        assert!(random().unwrap().len() >= 43);
    }

    #[test]
    fn assertions_are_signed_with_the_key() {
        for (kind, name, size) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, "ES256", 64),
            (&rcgen::PKCS_ECDSA_P384_SHA384, "ES384", 96),
            (&rcgen::PKCS_ED25519, "EdDSA", 64),
        ] {
            let key = KeyPair::generate_for(kind).unwrap();
            // Many times: a number of a signature may be shorter than its place.
            for _ in 0..40 {
                let token = assertion(&key.serialize_pem(), "me", "https://as.test", None).unwrap();
                let parts: Vec<Vec<u8>> =
                    token.split('.').map(|part| BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()).collect();
                let header: Value = serde_json::from_slice(&parts[0]).unwrap();
                let claims: Value = serde_json::from_slice(&parts[1]).unwrap();
                assert_eq!((header["alg"].as_str(), parts[2].len()), (Some(name), size));
                assert_eq!(claims["aud"], "https://as.test");
                assert!(claims["iss"] == "me" && claims["sub"] == "me");
                assert!(claims["exp"].as_u64() > claims["iat"].as_u64());
            }
            let refused = ["RS256".to_owned()];
            assert!(assertion(&key.serialize_pem(), "me", "i", Some(&refused)).is_err(), "{name}");
        }
        assert!(assertion("no key", "me", "i", None).is_err());
    }

    #[test]
    fn broken_signatures_are_refused() {
        for bytes in [&[][..], &[0x30], &[0x30, 2, 2, 0], &[0x30, 0x80, 0], &[0x30, 6, 2, 1, 1, 2, 1, 1, 9]] {
            assert_eq!(joined(bytes, 32), None, "{bytes:?}");
        }
    }
}
