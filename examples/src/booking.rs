//! A booking service on axum: `POST /bookings` charges a card, reserves a seat and sends a ticket,
//! all of it or nothing.
//!
//! The key of the request starts an operation of three steps. A repeat joins it or replays its
//! answer, also after the service was killed and started again. Where the flight is full, the
//! charge is given back.

use std::path::Path;

use axum::{
    Extension, Json, Router,
    extract::State,
    http::{HeaderName, StatusCode},
    response::{IntoResponse as _, Response},
    routing::post,
};
use semel::{
    Semel,
    core::{OnUnknown, Policy, Scope},
};
use semel_sqlite::SqliteStore;
use semel_steps::{
    Operation, OperationHandle, OperationOutcome, Operations, SqliteOperations, StepError,
};
use semel_tower::{Callers, IdempotencyLayer, KeyRule, Lease};
use serde::{Deserialize, Serialize};

/// What a client wants to book.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trip {
    flight: i64,
    cents: u64,
}

/// What it gets.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Booking {
    charge: String,
    seats_left: i64,
}

/// The services that a booking calls. Both take idempotency keys.
pub trait TravelServices: Clone + Send + Sync + 'static {
    /// Charges a card.
    fn charge(
        &self,
        key: &str,
        cents: u64,
    ) -> impl Future<Output = Result<String, StepError>> + Send;
    /// Gives the money back.
    fn refund(&self, key: &str, charge: &str)
    -> impl Future<Output = Result<(), StepError>> + Send;
    /// Sends the ticket.
    fn send_ticket(&self, key: &str) -> impl Future<Output = Result<(), StepError>> + Send;
}

async fn book<S: TravelServices>(
    op: Operation<SqliteOperations>,
    trip: Trip,
    services: S,
) -> Result<Booking, StepError> {
    let Trip { flight, cents } = trip;
    let (charging, refunding) = (services.clone(), services.clone());
    let charge = op
        .step("charge", |step| async move { charging.charge(step.key(), cents).await })
        .undo(|undo, charge: String| async move { refunding.refund(undo.key(), &charge).await })
        .await?;
    let seats_left = op
        .step_tx("reserve", |mut tx| async move {
            let reserved = tx.run(move |db| {
                let sql = "UPDATE flights SET seats = seats - 1 WHERE id = ?1 RETURNING seats";
                db.query_row(sql, [flight], |row| row.get::<_, i64>(0))
            });
            match reserved.await? {
                // Rolled back together with the step.
                ..0 => Err(StepError::refused("the flight is full")),
                seats_left => Ok(seats_left),
            }
        })
        .undo_tx(move |mut tx, _| async move {
            let sql = "UPDATE flights SET seats = seats + 1 WHERE id = ?1";
            tx.run(move |db| db.execute(sql, [flight])).await?;
            Ok(())
        })
        .await?;
    op.step("ticket", |step| async move { services.send_ticket(step.key()).await }).await?;
    Ok(Booking { charge, seats_left })
}

type BookingHandle = OperationHandle<SqliteOperations, Trip, Booking>;

async fn answer(
    State(booking): State<BookingHandle>,
    Extension(lease): Extension<Lease>,
    Json(trip): Json<Trip>,
) -> Response {
    // Free the key, so that a repeat comes here again and joins the operation.
    let again = [(HeaderName::from_static("idempotency-outcome"), "retry")];
    match booking.run(lease.key_for("booking").as_str(), &trip).await {
        Ok(OperationOutcome::Done(booking)) => (StatusCode::CREATED, Json(booking)).into_response(),
        Ok(OperationOutcome::Undone(refusal)) => {
            let why = refusal.refusal::<String>().unwrap_or_default();
            (StatusCode::UNPROCESSABLE_ENTITY, why).into_response()
        }
        Ok(OperationOutcome::KeyReused) => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
        Ok(OperationOutcome::Running | OperationOutcome::Parked(_)) | Err(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, again).into_response()
        }
    }
}

/// The service with its files in this folder, and the operations to drain at its end.
///
/// # Errors
///
/// If a file cannot be opened.
pub fn router(
    folder: &Path,
    services: impl TravelServices,
) -> anyhow::Result<(Router, Operations<SqliteOperations>)> {
    let semel = Semel::new(SqliteStore::open(folder.join("semel.db"))?);
    let operations = Operations::new(SqliteOperations::open(folder.join("travel.db"))?);
    let booking =
        operations.operation("booking", 1, move |op, trip| book(op, trip, services.clone()));
    operations.recover();
    let callers = Callers::header(HeaderName::from_static("x-agency"))?;
    // What is unknown runs again: the operation itself knows what it has done.
    let policy = Policy { on_unknown: OnUnknown::Rerun, ..Policy::default() };
    let layer = IdempotencyLayer::new(&semel, Scope::new("bookings")?, callers)
        .key(KeyRule::default().required())
        .policy(policy);
    let router = Router::new().route("/bookings", post(answer)).route_layer(layer);
    Ok((router.with_state(booking), operations))
}
