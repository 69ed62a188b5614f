//! Which store it is, as people write it down.

use semel::core::StoreId;
use sha2::{Digest as _, Sha256};

use data_encoding::HEXLOWER;

/// The id of a store for configurations and people: 32 hexadecimal digits.
///
/// It is a hash: the identity itself would allow writes that a shared cache trusts.
pub(crate) fn public_id(id: StoreId) -> String {
    let mut hash = Sha256::new();
    hash.update(b"the id of a store of semel\0");
    hash.update(id.as_bytes());
    HEXLOWER.encode(hash.finalize().get(..16).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_one_id_which_does_not_tell_its_identity() {
        let id = public_id(StoreId::from_bytes([7; 16]));
        assert_eq!(id.len(), 32);
        assert_eq!(id, public_id(StoreId::from_bytes([7; 16])));
        assert_ne!(id, public_id(StoreId::from_bytes([8; 16])));
        assert!(!id.contains("0707"), "{id}");
    }
}
