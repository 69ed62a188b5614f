//! Tests of the servers in the kit: they are real, and come to the harm that they are meant to.

mod postgres;
