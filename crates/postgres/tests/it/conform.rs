//! The PostgreSQL store keeps every law, the durable one included, whichever way it is reached.

use crate::common::{Pg, Way};

mod owner {
    use super::*;

    semel_testkit::conform!(restorable, Pg::new(Way::Owner).await);
    semel_testkit::torture_histories!(Pg::new(Way::Owner).await, 400);
}

mod granted {
    use super::*;

    semel_testkit::conform!(durable, Pg::new(Way::Granted).await);
}

mod pooled {
    use super::*;

    semel_testkit::conform!(durable, Pg::new(Way::Pooled).await);
    semel_testkit::torture_histories!(Pg::new(Way::Pooled).await, 200);
}
