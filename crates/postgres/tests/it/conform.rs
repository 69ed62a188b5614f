//! The conformance kit on the PostgreSQL store, for each kind of access.

use crate::fixture::{Access, Pg};

mod owner {
    use super::*;

    semel_testkit::conform!(restorable, Pg::new(Access::Owner).await);
    semel_testkit::torture_histories!(Pg::new(Access::Owner).await, 400);
}

mod granted {
    use super::*;

    semel_testkit::conform!(durable, Pg::new(Access::Granted).await);
}

mod pooled {
    use super::*;

    semel_testkit::conform!(durable, Pg::new(Access::Pooled).await);
    semel_testkit::torture_histories!(Pg::new(Access::Pooled).await, 200);
}
