//! The shop's own database: one order for each key, and no zombie writes to it.

use std::path::Path;

use rusqlite::{OptionalExtension, params};
use semel::core::{Fence, Key};

use super::{Cart, Merchant};
use crate::database::Database;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS orders (
        number INTEGER PRIMARY KEY,
        merchant TEXT NOT NULL,
        key TEXT NOT NULL,
        fence INTEGER NOT NULL,
        item TEXT NOT NULL,
        cents INTEGER NOT NULL,
        card TEXT NOT NULL,
        charge TEXT,
        UNIQUE (merchant, key)
    ) STRICT;
";

const OPEN: &str = "
    INSERT INTO orders (merchant, key, fence, item, cents, card) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT (merchant, key) DO UPDATE SET fence = excluded.fence WHERE fence <= excluded.fence
    RETURNING number, cents, charge, (item, cents, card) = (?4, ?5, ?6)";

/// The orders. Clones share the connection.
#[derive(Clone, Debug)]
pub(super) struct Orders(Database);

/// An order, paid or not.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) number: i64,
    pub(super) cents: u32,
    pub(super) charge: Option<String>,
}

/// Why an order was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrdersError {
    #[error("fence {0} is not the highest any more: a later run took over")]
    Zombie(Fence),
    /// It may be older than what the layer remembers, which forgets after its retention.
    #[error("this key was used for another order")]
    KeyReused,
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
    #[error(transparent)]
    Thread(#[from] tokio::task::JoinError),
}

impl Orders {
    pub(super) fn at(path: &Path) -> rusqlite::Result<Self> {
        Database::open(path, SCHEMA).map(Self)
    }

    /// Makes an order that is not paid, or finds the one that an earlier run has made; and lets no
    /// earlier run write to it from now on.
    pub(super) async fn open(
        &self,
        merchant: &Merchant,
        key: &Key,
        fence: Fence,
        cart: &Cart,
    ) -> Result<Order, OrdersError> {
        let (merchant, key, cart) = (merchant.0.clone(), key.clone(), cart.clone());
        self.0
            .write(move |writing| {
                let Cart { item, cents, card } = cart;
                let row = params![merchant, key.as_str(), number(fence), item, cents, card];
                let order = writing.query_row(OPEN, row, |row| {
                    let (number, cents, charge) = (row.get(0)?, row.get(1)?, row.get(2)?);
                    Ok((Order { number, cents, charge }, row.get(3)?))
                });
                match order.optional()? {
                    Some((order, true)) => Ok(order),
                    Some((_, false)) => Err(OrdersError::KeyReused),
                    None => Err(OrdersError::Zombie(fence)),
                }
            })
            .await
    }

    /// Writes down that an order is paid.
    pub(super) async fn pay(
        &self,
        order: i64,
        fence: Fence,
        charge: &str,
    ) -> Result<(), OrdersError> {
        let charge = charge.to_owned();
        self.0
            .write(move |writing| {
                let pay = "UPDATE orders SET charge = ?3 WHERE number = ?1 AND fence = ?2";
                let paid = writing.execute(pay, params![order, number(fence), charge])?;
                if paid == 0 { Err(OrdersError::Zombie(fence)) } else { Ok(()) }
            })
            .await
    }
}

/// No store counts further than an SQL integer.
fn number(fence: Fence) -> i64 {
    i64::try_from(fence.get()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_zombie_can_neither_open_nor_pay_what_a_later_run_has_opened() {
        let folder = tempfile::tempdir().unwrap();
        let orders = Orders::at(&folder.path().join("shop.db")).unwrap();
        let (merchant, key) = (Merchant("ada".to_owned()), Key::new("k").unwrap());
        let cart = Cart { item: "tea".to_owned(), cents: 7, card: String::new() };
        let fence = |number| Fence::new(number).unwrap();
        let open = async |number| orders.open(&merchant, &key, fence(number), &cart).await;

        let first = open(1).await.unwrap();
        let second = open(2).await.unwrap();
        assert_eq!(first.number, second.number);
        assert!(matches!(open(1).await, Err(OrdersError::Zombie(_))));
        let late = orders.pay(first.number, fence(1), "ch_1").await;
        assert!(matches!(late, Err(OrdersError::Zombie(_))), "{late:?}");
        assert_eq!(open(2).await.unwrap().charge, None);

        orders.pay(second.number, fence(2), "ch_2").await.unwrap();
        assert_eq!(open(3).await.unwrap().charge.as_deref(), Some("ch_2"));
    }

    #[tokio::test]
    async fn another_order_under_the_same_key_is_refused_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let orders = Orders::at(&folder.path().join("shop.db")).unwrap();
        let (merchant, key) = (Merchant("ada".to_owned()), Key::new("k").unwrap());
        let fence = |number| Fence::new(number).unwrap();
        let cart = Cart { item: "tea".to_owned(), cents: 7, card: "tok_visa".to_owned() };
        let first = orders.open(&merchant, &key, fence(1), &cart).await.unwrap();
        for other in [
            Cart { item: "gold".to_owned(), ..cart.clone() },
            Cart { cents: 8, ..cart.clone() },
            Cart { card: "tok_other".to_owned(), ..cart.clone() },
        ] {
            let refused = orders.open(&merchant, &key, fence(2), &other).await;
            assert!(matches!(refused, Err(OrdersError::KeyReused)), "{other:?}");
        }
        let again = orders.open(&merchant, &key, fence(1), &cart).await.unwrap();
        assert_eq!(again.number, first.number, "and the fence is what it was");
    }
}
