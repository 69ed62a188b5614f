//! The table of states, cell by cell: the record's state, the act, the store's result, and
//! what is there afterwards. Every fence here is the current one; `fence` has the others.

/// Hands every cell to a macro: `name: Stage CellAct => CellResult, RecordAfter;`.
#[doc(hidden)]
#[macro_export]
macro_rules! conform_cells {
    ($with:ident $($arguments:tt)*) => {
        $crate::$with! { $($arguments)*
    // The same request by another owner.
    an_absent_key_is_granted: Absent Claim => First, Begun;
    a_running_key_is_not_granted_to_another: Running Claim => InFlight, Same;
    a_lapsed_hold_answers_held: LapsedHold Claim => IsHeld, Same;
    a_lapsed_rerun_is_granted_again: LapsedRerun Claim => Next, Begun;
    a_lapsed_fail_answers_failed: LapsedFail Claim => ReplayFailed, Failed;
    a_completed_key_is_replayed: Completed Claim => Replay, Same;
    a_completed_key_past_retention_is_granted: CompletedPast Claim => First, Begun;
    a_released_key_is_granted_as_the_next_attempt: Released Claim => Next, Begun;
    a_released_key_past_retention_is_granted_as_the_first: ReleasedPast Claim => First, Begun;
    a_held_key_is_not_granted: Held Claim => IsHeld, Same;

    // Another request under the same key.
    an_absent_key_takes_another_fingerprint: Absent ClaimOther => First, Begun;
    a_running_key_refuses_another_fingerprint: Running ClaimOther => Reused, Same;
    a_lapsed_hold_refuses_another_fingerprint: LapsedHold ClaimOther => Reused, Same;
    a_lapsed_lease_is_not_retaken_with_another_fingerprint: LapsedRerun ClaimOther => Reused, Same;
    a_lapsed_fail_refuses_another_fingerprint: LapsedFail ClaimOther => Reused, Same;
    a_completed_key_refuses_another_fingerprint: Completed ClaimOther => Reused, Same;
    completed_past_retention_takes_another_fingerprint: CompletedPast ClaimOther => First, Begun;
    a_released_key_refuses_another_fingerprint: Released ClaimOther => Reused, Same;
    released_past_retention_takes_another_fingerprint: ReleasedPast ClaimOther => First, Begun;
    a_held_key_refuses_another_fingerprint: Held ClaimOther => Reused, Same;

    // The same claim once more.
    an_old_claim_of_an_absent_key_starts_over: Absent ClaimAgain => First, Begun;
    an_owner_that_asks_again_has_the_same_fence: Running ClaimAgain => Again, Renewed;
    an_owner_that_asks_again_keeps_its_lapsed_hold: LapsedHold ClaimAgain => Again, Renewed;
    an_owner_that_asks_again_keeps_its_lapsed_rerun: LapsedRerun ClaimAgain => Again, Renewed;
    an_owner_that_asks_again_keeps_its_lapsed_fail: LapsedFail ClaimAgain => Again, Renewed;
    an_owner_that_asks_again_has_its_answer: Completed ClaimAgain => Replay, Same;
    an_old_claim_past_retention_starts_over: CompletedPast ClaimAgain => First, Begun;
    a_stale_duplicate_of_a_released_claim_is_refused: Released ClaimAgain => Ended, Same;
    an_old_claim_past_released_retention_starts_over: ReleasedPast ClaimAgain => First, Begun;
    an_owner_that_asks_again_finds_its_key_held: Held ClaimAgain => IsHeld, Same;

    // Renewal.
    an_absent_lease_is_not_renewed: Absent Renew => Lost, Same;
    a_running_lease_is_renewed: Running Renew => Applied, Renewed;
    an_unseen_lapsed_hold_is_renewed: LapsedHold Renew => Applied, Renewed;
    a_lapsed_rerun_without_a_takeover_is_renewed: LapsedRerun Renew => Applied, Renewed;
    an_unseen_lapsed_fail_is_renewed: LapsedFail Renew => Applied, Renewed;
    a_completed_record_is_not_renewed: Completed Renew => Lost, Same;
    a_completed_record_past_retention_is_not_renewed: CompletedPast Renew => Lost, Same;
    a_released_record_is_not_renewed: Released Renew => Lost, Same;
    a_released_record_past_retention_is_not_renewed: ReleasedPast Renew => Lost, Same;
    a_held_record_is_not_renewed: Held Renew => Lost, Same;

    // The answer.
    an_absent_record_takes_no_answer: Absent Complete => Lost, Same;
    a_running_record_is_completed: Running Complete => Applied, Completed;
    a_lapsed_hold_is_completed: LapsedHold Complete => Applied, Completed;
    a_lapsed_rerun_is_completed: LapsedRerun Complete => Applied, Completed;
    a_lapsed_fail_is_completed: LapsedFail Complete => Applied, Completed;
    a_completed_record_takes_no_other_answer: Completed Complete => Lost, Same;
    a_repeated_complete_is_applied: Completed CompleteAgain => Applied, Same;
    a_record_past_retention_takes_no_other_answer: CompletedPast Complete => Lost, Same;
    a_repeated_complete_past_retention_is_lost: CompletedPast CompleteAgain => Lost, Same;
    a_released_record_takes_no_answer: Released Complete => Lost, Same;
    a_released_record_past_retention_takes_no_answer: ReleasedPast Complete => Lost, Same;
    a_late_answer_completes_a_held_record: Held Complete => Applied, Completed;

    // Release.
    an_absent_record_is_not_released: Absent Release => Lost, Same;
    a_running_record_is_released: Running Release => Applied, Released;
    a_lapsed_hold_is_released: LapsedHold Release => Applied, Released;
    a_lapsed_rerun_is_released: LapsedRerun Release => Applied, Released;
    a_lapsed_fail_is_released: LapsedFail Release => Applied, Released;
    a_completed_record_is_not_released: Completed Release => Lost, Same;
    a_completed_record_past_retention_is_not_released: CompletedPast Release => Lost, Same;
    a_repeated_release_is_applied: Released Release => Applied, Same;
    a_repeated_release_past_retention_is_lost: ReleasedPast Release => Lost, Same;
    a_held_record_is_released_by_its_owner: Held Release => Applied, Released;

    // Release of what never began.
    an_absent_record_is_not_released_untried: Absent ReleaseUntried => Lost, Same;
    a_run_that_never_began_does_not_count: Running ReleaseUntried => Applied, Untried;
    a_lapsed_hold_that_never_began_does_not_count: LapsedHold ReleaseUntried => Applied, Untried;
    a_lapsed_rerun_that_never_began_does_not_count: LapsedRerun ReleaseUntried => Applied, Untried;
    a_lapsed_fail_that_never_began_does_not_count: LapsedFail ReleaseUntried => Applied, Untried;
    a_completed_record_is_not_released_untried: Completed ReleaseUntried => Lost, Same;
    completed_past_retention_is_not_released_untried: CompletedPast ReleaseUntried => Lost, Same;
    a_repeated_release_counts_nothing_back: Released ReleaseUntried => Applied, Same;
    released_past_retention_is_not_released_untried: ReleasedPast ReleaseUntried => Lost, Same;
    a_held_record_that_never_began_does_not_count: Held ReleaseUntried => Applied, Untried;

    // Unknown outcome.
    an_absent_record_is_not_held: Absent Hold => Lost, Same;
    a_running_record_is_held: Running Hold => Applied, Held;
    a_lapsed_hold_is_held: LapsedHold Hold => Applied, Held;
    a_lapsed_rerun_is_held: LapsedRerun Hold => Applied, Held;
    a_lapsed_fail_is_held: LapsedFail Hold => Applied, Held;
    a_completed_record_is_not_held: Completed Hold => Lost, Same;
    a_completed_record_past_retention_is_not_held: CompletedPast Hold => Lost, Same;
    a_released_record_is_not_held: Released Hold => Lost, Same;
    a_released_record_past_retention_is_not_held: ReleasedPast Hold => Lost, Same;
    a_repeated_hold_is_applied: Held Hold => Applied, Same;

    // An operator says: it happened.
    resolving_an_absent_record_is_refused: Absent ResolveCompleted => Stale, Same;
    resolving_a_running_record_is_refused: Running ResolveCompleted => Stale, Same;
    a_lapsed_hold_is_resolved_completed: LapsedHold ResolveCompleted => Applied, Completed;
    resolving_a_lapsed_rerun_is_refused: LapsedRerun ResolveCompleted => Stale, Same;
    resolving_a_lapsed_fail_is_refused: LapsedFail ResolveCompleted => Stale, Same;
    resolving_a_completed_record_is_refused: Completed ResolveCompleted => Stale, Same;
    resolving_completed_past_retention_is_refused: CompletedPast ResolveCompleted => Stale, Same;
    resolving_a_released_record_is_refused: Released ResolveCompleted => Stale, Same;
    resolving_released_past_retention_is_refused: ReleasedPast ResolveCompleted => Stale, Same;
    a_held_record_is_resolved_completed: Held ResolveCompleted => Applied, Completed;

    // An operator says: it did not.
    releasing_an_absent_record_is_refused: Absent ResolveReleased => Stale, Same;
    releasing_a_running_record_is_refused: Running ResolveReleased => Stale, Same;
    a_lapsed_hold_is_resolved_released: LapsedHold ResolveReleased => Applied, Released;
    releasing_a_lapsed_rerun_is_refused: LapsedRerun ResolveReleased => Stale, Same;
    releasing_a_lapsed_fail_is_refused: LapsedFail ResolveReleased => Stale, Same;
    releasing_a_completed_record_is_refused: Completed ResolveReleased => Stale, Same;
    releasing_completed_past_retention_is_refused: CompletedPast ResolveReleased => Stale, Same;
    releasing_a_released_record_is_refused: Released ResolveReleased => Stale, Same;
    releasing_released_past_retention_is_refused: ReleasedPast ResolveReleased => Stale, Same;
    a_held_record_is_resolved_released: Held ResolveReleased => Applied, Released;

    // An operator says: delete it.
    deleting_an_absent_record_is_refused: Absent Delete => Stale, Same;
    deleting_a_running_record_is_refused: Running Delete => Stale, Same;
    a_lapsed_hold_is_deleted: LapsedHold Delete => Applied, Absent;
    a_lapsed_rerun_is_deleted: LapsedRerun Delete => Applied, Absent;
    a_lapsed_fail_is_deleted: LapsedFail Delete => Applied, Absent;
    a_completed_record_is_deleted: Completed Delete => Applied, Absent;
    deleting_completed_past_retention_is_refused: CompletedPast Delete => Stale, Same;
    a_released_record_is_deleted: Released Delete => Applied, Absent;
    deleting_released_past_retention_is_refused: ReleasedPast Delete => Stale, Same;
    a_held_record_is_deleted: Held Delete => Applied, Absent;

    // Its owner forgets it: nothing ran under the key.
    an_absent_record_is_not_forgotten: Absent Forget => Lost, Same;
    a_running_record_is_forgotten: Running Forget => Applied, Forgotten;
    a_lapsed_hold_is_forgotten: LapsedHold Forget => Applied, Forgotten;
    a_lapsed_rerun_is_forgotten: LapsedRerun Forget => Applied, Forgotten;
    a_lapsed_fail_is_forgotten: LapsedFail Forget => Applied, Forgotten;
    a_completed_record_is_not_forgotten: Completed Forget => Lost, Same;
    completed_past_retention_is_not_forgotten: CompletedPast Forget => Lost, Same;
    a_released_record_takes_a_forget_as_repeated: Released Forget => Applied, Same;
    released_past_retention_is_not_forgotten: ReleasedPast Forget => Lost, Same;
    a_held_record_is_forgotten_by_its_owner: Held Forget => Applied, Forgotten;

    // What was forgotten.
    a_forgotten_key_is_granted_as_the_first_attempt: Forgotten Claim => First, Begun;
    a_forgotten_key_takes_another_fingerprint: Forgotten ClaimOther => First, Begun;
    a_stale_duplicate_of_a_forgotten_claim_is_refused: Forgotten ClaimAgain => Ended, Same;
    a_forgotten_record_is_not_renewed: Forgotten Renew => Lost, Same;
    a_forgotten_record_takes_no_answer: Forgotten Complete => Lost, Same;
    a_forgotten_record_takes_a_release_as_repeated: Forgotten Release => Applied, Same;
    a_repeated_forget_is_applied: Forgotten Forget => Applied, Same;
    a_forgotten_record_is_not_held: Forgotten Hold => Lost, Same;
    resolving_a_forgotten_record_is_refused: Forgotten ResolveCompleted => Stale, Same;
    releasing_a_forgotten_record_is_refused: Forgotten ResolveReleased => Stale, Same;
    a_forgotten_record_is_deleted: Forgotten Delete => Applied, Absent;
    a_reaper_leaves_a_forgotten_record: Forgotten Reap => Done(0), Same;
    a_sweep_leaves_a_forgotten_record: Forgotten Sweep => Done(0), Same;

    // The reaper.
    a_reaper_finds_nothing_absent: Absent Reap => Done(0), Same;
    a_reaper_leaves_a_running_record: Running Reap => Done(0), Same;
    a_reaper_holds_a_lapsed_hold: LapsedHold Reap => Done(1), Same;
    a_reaper_leaves_a_lapsed_rerun: LapsedRerun Reap => Done(0), Same;
    a_reaper_ends_a_lapsed_fail: LapsedFail Reap => Done(1), Failed;
    a_reaper_leaves_a_completed_record: Completed Reap => Done(0), Same;
    a_reaper_leaves_completed_past_retention: CompletedPast Reap => Done(0), Same;
    a_reaper_leaves_a_released_record: Released Reap => Done(0), Same;
    a_reaper_leaves_released_past_retention: ReleasedPast Reap => Done(0), Same;
    a_reaper_leaves_a_held_record: Held Reap => Done(0), Same;

    // The sweep.
    a_sweep_finds_nothing_absent: Absent Sweep => Done(0), Same;
    a_sweep_leaves_a_running_record: Running Sweep => Done(0), Same;
    a_sweep_leaves_a_lapsed_hold: LapsedHold Sweep => Done(0), Same;
    a_sweep_leaves_a_lapsed_rerun: LapsedRerun Sweep => Done(0), Same;
    a_sweep_leaves_a_lapsed_fail: LapsedFail Sweep => Done(0), Same;
    a_sweep_leaves_a_completed_record: Completed Sweep => Done(0), Same;
    a_sweep_takes_completed_past_retention: CompletedPast Sweep => Done(1), Absent;
    a_sweep_leaves_a_released_record: Released Sweep => Done(0), Same;
    a_sweep_takes_released_past_retention: ReleasedPast Sweep => Done(1), Absent;
    a_sweep_leaves_a_held_record: Held Sweep => Done(0), Same;
        }
    };
}
