//! How much a store holds, for quotas.

/// How much a store holds. `None` is what the store does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Records, those past retention included until they are swept. May be an estimate.
    pub records: Option<u64>,
    /// Bytes that the records take. Space inside the store that is free for new records does not
    /// count, so that sweeping reduces it. May be an estimate.
    pub bytes: Option<u64>,
    /// The file system that the store is on.
    pub disk: Option<DiskSpace>,
}

/// The space of a file system, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// All of it.
    pub total: u64,
    /// What is left for this process.
    pub available: u64,
}
