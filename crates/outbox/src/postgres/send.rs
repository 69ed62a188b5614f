//! Sends messages with the transaction of a connection.

use tokio_postgres::{
    Client, Error,
    types::{ToSql, Type},
};
use uuid::Uuid;

use crate::OutgoingMessage;

/// The statement, for other drivers: topic, key, payload and id.
pub const SEND: &str = "SELECT semel_send($1, $2, $3, $4)";

/// Sends a message with the current transaction of this connection, in one statement.
///
/// A message with a key takes an advisory lock on the key until the transaction ends, so that other
/// transactions that send under the same key wait for its commit. Send last, so that they wait
/// briefly. Two transactions that take two keys in different order can deadlock; PostgreSQL then
/// ends one of them. [`send_all`] takes its keys in one order.
///
/// [`Transaction::client`](tokio_postgres::Transaction::client) gives the connection of a
/// transaction.
///
/// # Errors
///
/// If the database refuses; the transaction is aborted then.
pub async fn send(client: &Client, message: &OutgoingMessage) -> Result<Uuid, Error> {
    let (topic, key, payload) = message.parts();
    let id = message.id();
    let parameters: [(&(dyn ToSql + Sync), Type); 4] =
        [(&topic, Type::TEXT), (&key, Type::TEXT), (&payload, Type::BYTEA), (&id, Type::UUID)];
    client.query_typed_one(SEND, &parameters).await?;
    Ok(id)
}

/// Sends several messages with the current transaction, in one statement. Messages of one key keep
/// their order; the locks of the keys are taken in one order.
///
/// # Errors
///
/// If the database refuses; the transaction is aborted then.
pub async fn send_all(client: &Client, messages: &[OutgoingMessage]) -> Result<(), Error> {
    const SQL: &str = "
        SELECT semel_send(m.topic, m.key, m.payload, m.id) FROM (
            SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::uuid[])
                WITH ORDINALITY AS u (topic, key, payload, id, place)
            ORDER BY key COLLATE \"C\", place OFFSET 0
        ) AS m";
    let parts = || messages.iter().map(OutgoingMessage::parts);
    let topics: Vec<_> = parts().map(|(topic, ..)| topic).collect();
    let keys: Vec<_> = parts().map(|(_, key, _)| key).collect();
    let payloads: Vec<_> = parts().map(|(.., payload)| payload).collect();
    let ids: Vec<_> = messages.iter().map(OutgoingMessage::id).collect();
    let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
        (&topics, Type::TEXT_ARRAY),
        (&keys, Type::TEXT_ARRAY),
        (&payloads, Type::BYTEA_ARRAY),
        (&ids, Type::UUID_ARRAY),
    ];
    client.query_typed(SQL, &parameters).await.map(drop)
}
