//! The privileges that a gateway needs on the objects of a store.

use crate::options::Options;

/// The grants that a gateway needs: the column of the query, the privilege, the object.
pub(super) const GRANTS: [(&str, &str, StoreObject); 12] = [
    ("records_select", "SELECT", StoreObject::Records),
    ("records_insert", "INSERT", StoreObject::Records),
    ("records_update", "UPDATE", StoreObject::Records),
    ("records_delete", "DELETE", StoreObject::Records),
    ("meta_select", "SELECT", StoreObject::StoreMeta),
    ("meta_update", "UPDATE", StoreObject::StoreMeta),
    ("metadata_select", "SELECT", StoreObject::Metadata),
    ("metadata_insert", "INSERT", StoreObject::Metadata),
    ("metadata_update", "UPDATE", StoreObject::Metadata),
    ("metadata_delete", "DELETE", StoreObject::Metadata),
    ("fences_usage", "USAGE", StoreObject::Fences),
    ("fences_update", "UPDATE", StoreObject::Fences),
];

/// A table or sequence of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreObject {
    Records,
    StoreMeta,
    Metadata,
    Fences,
}

impl StoreObject {
    /// Its quoted name.
    pub(super) fn named(self, options: &Options) -> String {
        options.names.fill(match self {
            Self::Records => "{records}",
            Self::StoreMeta => "{meta}",
            Self::Metadata => "{metadata}",
            Self::Fences => "{fences}",
        })
    }
}
