//! Records in the transactions of ``SQLAlchemy`` and node-postgres, by the functions that
//! `semel migrate` installs: clients are killed between every two statements, and the database in
//! between.

use std::{
    collections::BTreeMap,
    io::Write as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use semel_testkit::servers::Postgres;
use serde_json::{Value, json};

use crate::{HERE, common::semel_command, process::prepared};

const FLEET_MAX: Duration = Duration::from_secs(120);
const TORTURE_MAX: Duration = Duration::from_secs(900);

/// An order takes three statements and its end.
const STEPS: usize = 4;

const GUIDE: &str = include_str!("../../../../docs/reference/sql.md");

#[derive(Clone, Copy)]
enum Driver {
    SqlAlchemy,
    NodePostgres,
}

impl Driver {
    /// The program that places orders.
    fn program(self) -> Option<Command> {
        match self {
            Self::SqlAlchemy => {
                let mut python = Command::new(prepared("SEMEL_TEST_PYTHON")?);
                python.arg(format!("{HERE}/sql/sqlalchemy_orders.py"));
                Some(python)
            }
            Self::NodePostgres => {
                let mut node = Command::new("node");
                node.env("NODE_PATH", prepared("SEMEL_TEST_NODE_MODULES")?);
                node.arg(format!("{HERE}/sql/node_postgres_orders.js"));
                Some(node)
            }
        }
    }
}

/// A database with a table of orders, and the functions.
struct Shop {
    server: Postgres,
    database: String,
}

impl Shop {
    fn open() -> Self {
        let server = Postgres::start(&[]);
        let database = server.fresh_database();
        let shop = Self { server, database };
        let url = shop.server.url(&shop.database);
        // It may be repeated.
        for _ in 0..2 {
            let migrate = ["migrate", "--transactional", "--store", &url];
            let output = semel_command().args(migrate).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        shop.sql("CREATE TABLE orders (id bigserial PRIMARY KEY, item text NOT NULL)");
        shop
    }

    fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.database, sql)
    }

    /// Starts a program that places these orders.
    fn client(
        &self,
        driver: Driver,
        orders: &[String],
        kill_after: Option<usize>,
    ) -> Option<Child> {
        let mut program = driver.program()?;
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let url = self.server.url(&self.database);
        let input = json!({ "url": url, "orders": orders, "kill_after": kill_after });
        child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
        Some(child)
    }

    /// The numbers of the orders in the database, by key; each is there once.
    fn orders(&self) -> BTreeMap<String, u64> {
        let rows = self.sql("SELECT replace(item, 'item of ', ''), id FROM orders");
        let rows: Vec<(&str, &str)> =
            rows.lines().map(|row| row.split_once('|').unwrap()).collect();
        let orders = rows.iter().map(|(key, id)| ((*key).to_owned(), id.parse().unwrap()));
        let orders: BTreeMap<String, u64> = orders.collect();
        assert_eq!(orders.len(), rows.len(), "an order was placed twice: {rows:?}");
        orders
    }
}

/// The orders that a program says that it has placed, by key.
fn placed(child: Child) -> BTreeMap<String, u64> {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let placed = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        (line["key"].as_str().unwrap().to_owned(), line["order"].as_u64().unwrap())
    };
    String::from_utf8(output.stdout).unwrap().lines().map(placed).collect()
}

fn survives_kills_between_every_two_statements(driver: Driver) {
    if driver.program().is_none() {
        return;
    }
    let shop = Shop::open();
    for step in 1..=STEPS {
        let orders = [format!("{step}-a"), format!("{step}-b")];
        let mut first = shop.client(driver, &orders, Some(step)).unwrap();
        assert!(!first.wait().unwrap().success(), "step {step}: it was not killed");
        let committed = shop.orders().contains_key(&orders[0]);
        assert_eq!(committed, step == STEPS, "step {step}");
        let placed = placed(shop.client(driver, &orders, None).unwrap());
        let kept = shop.orders();
        for order in &orders {
            assert_eq!(placed[order], kept[order], "step {step}");
        }
    }
    assert_eq!(shop.orders().len(), 2 * STEPS);
}

#[test]
fn sqlalchemy_places_each_order_once_although_it_is_killed() {
    survives_kills_between_every_two_statements(Driver::SqlAlchemy);
}

#[test]
fn node_postgres_places_each_order_once_although_it_is_killed() {
    survives_kills_between_every_two_statements(Driver::NodePostgres);
}

/// Four programs place the same orders, each in an order of its own.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test has a limit of time")]
fn a_fleet_of_both_places_each_order_once_although_it_and_the_database_are_killed_torture() {
    let is_torture = std::env::var_os("SEMEL_TORTURE").is_some();
    let (count, limit) = if is_torture { (1000, TORTURE_MAX) } else { (80, FLEET_MAX) };
    let drivers = [Driver::SqlAlchemy, Driver::NodePostgres, Driver::NodePostgres];
    if drivers.iter().any(|driver| driver.program().is_none()) {
        return;
    }
    let mut shop = Shop::open();
    let orders = |worker: usize| -> Vec<String> {
        let first = worker * count / drivers.len();
        (first..first + count).map(|number| format!("o-{}", number % count)).collect()
    };
    let start = |shop: &Shop, worker| shop.client(drivers[worker], &orders(worker), None).unwrap();
    let mut workers: Vec<Child> = (0..drivers.len()).map(|worker| start(&shop, worker)).collect();
    let (began, mut kills) = (Instant::now(), 0);
    loop {
        assert!(began.elapsed() < limit, "the fleet takes too long");
        let done = shop.orders().len();
        if done == count {
            break;
        }
        // A kill after each eighth of the orders; the fourth one hits the database.
        if done > (kills + 1) * count / 8 {
            kills += 1;
            if kills == 4 {
                shop.server.kill();
                shop.server.start_again();
                continue;
            }
            let worker = kills % drivers.len();
            workers[worker].kill().unwrap();
            workers[worker].wait().unwrap();
            workers[worker] = start(&shop, worker);
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert!(kills >= 4, "{kills}");
    let kept = shop.orders();
    for worker in workers {
        for (key, number) in placed(worker) {
            assert_eq!(kept[&key], number, "{key}");
        }
    }
}

/// The page shows what runs here.
#[test]
fn the_page_about_sql_shows_the_programs_that_are_tested() {
    let programs = [
        ("python", include_str!("sql/sqlalchemy_orders.py")),
        ("js", include_str!("sql/node_postgres_orders.js")),
    ];
    for (language, program) in programs {
        let fence = format!("```{language}\n");
        let (_, block) = GUIDE.split_once(&fence).unwrap();
        let block = block.split_once("```").unwrap().0;
        for part in block.split("\n\n\n").map(str::trim) {
            assert!(program.contains(part), "{language}:\n{part}");
        }
    }
}
