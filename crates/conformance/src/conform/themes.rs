//! The one list of cases that are not cells, by theme. A case that is not in it is dead code, which
//! the compiler reports.

/// Hands every case to a macro: `theme { case … } …`.
#[doc(hidden)]
#[macro_export]
macro_rules! conform_themes {
    ($with:ident $($arguments:tt)*) => {
        $crate::$with! { $($arguments)*
    claim {
        a_first_claim_has_a_whole_lease
        callers_never_meet
        scopes_never_meet
        keys_are_compared_byte_by_byte
        the_longest_names_have_their_record
        an_owner_asks_again_through_another_handle
        an_owner_token_does_not_open_another_fingerprint
        an_owner_token_serves_two_keys
        asking_again_never_shortens_the_lease
        asking_again_does_not_make_the_claim_younger
        a_refused_claim_brings_no_policy
        a_granted_claim_brings_its_own_policy
    }
    takeover {
        a_lease_lives_to_its_last_millisecond
        a_renewed_lease_outlives_its_first_end
        a_renewal_never_shortens_the_lease
        a_lease_shrinks_with_time
        a_takeover_shuts_the_old_owner_out
        an_old_owner_that_claims_again_is_not_recognised
        attempts_and_fences_rise_with_every_takeover
        the_record_decides_about_the_unknown_not_the_claimant
    }
    fence {
        a_stale_fence_renews_nothing
        a_stale_fence_completes_nothing
        a_stale_fence_releases_nothing
        a_stale_fence_holds_nothing
        a_stale_fence_forgets_nothing
        a_stale_fence_resolves_nothing
        a_fence_that_was_never_issued_does_nothing
        a_fence_rises_with_every_claim
        a_fence_does_not_fall_after_forgetting
        a_fence_does_not_fall_after_a_sweep
        a_fence_does_not_fall_past_retention
        an_owner_from_before_a_sweep_does_not_write
    }
    forgotten {
        another_owner_with_the_same_fence_writes_nothing
        a_stale_duplicate_claim_after_a_forget_creates_no_ghost
        a_stale_duplicate_claim_after_a_release_is_not_granted
        a_lost_reply_to_a_forget_is_asked_again
        a_first_run_that_was_not_sent_is_forgotten
        what_was_refused_or_forgotten_is_kept_for_an_hour
        thousands_that_were_refused_are_gone_after_an_hour
        a_short_retention_is_not_stretched_to_an_hour
        the_fences_of_a_new_store_start_at_the_wall_clock
    }
    details {
        the_longest_details_are_kept
        a_new_claim_brings_its_own_details
        a_refused_claim_changes_no_details
        a_record_tells_when_it_ended_and_why
        an_expired_lease_tells_when_it_expired
        metadata_is_remembered_for_all_handles
        metadata_has_its_bounds
    }
    retention {
        an_answer_is_kept_to_its_last_millisecond
        retention_counts_from_the_claim
        an_answer_after_half_the_retention_restarts_retention
        an_answer_at_half_the_retention_moves_no_expiry
        a_release_after_half_the_retention_restarts_retention
        a_resolution_after_half_the_retention_restarts_retention
        a_failure_after_half_the_retention_restarts_retention
        a_renewal_moves_no_expiry
        a_new_claim_restarts_retention
        a_held_record_never_expires
        a_running_record_never_expires
        no_retention_at_all_forgets_at_once
    }
    held {
        a_late_answer_beats_the_operator
        the_operator_beats_a_late_answer
        a_held_record_keeps_its_attempts
        an_owner_ends_what_the_reaper_held
        a_lapsed_hold_is_held_for_all_handles
        an_unresolved_hold_fails_after_hold_for
        a_hold_that_came_by_itself_fails_after_hold_for
        a_claim_ends_a_hold_that_is_too_old
    }
    operator {
        a_resolved_answer_is_replayed
        a_resolved_release_is_the_next_attempt
        a_forgotten_key_starts_over
        an_act_is_done_once
        an_act_loses_against_a_newer_claim
        forgetting_loses_against_a_late_answer
        an_act_raises_the_epoch_for_all_handles
        an_owner_raises_no_epoch
        all_handles_have_one_identity
    }
    upkeep {
        a_reaper_keeps_its_limit
        a_reaper_keeps_its_limit_over_leases_and_holds
        a_sweep_keeps_its_limit
        a_batch_of_none_does_nothing
        a_reaped_record_is_no_longer_renewed
        a_reaped_failure_takes_no_answer
        what_was_reaped_is_not_reaped_again
        a_swept_key_starts_over
        a_sweep_is_not_stopped_by_records_that_never_finish
        records_of_many_retentions_are_all_swept
        a_record_without_retention_is_swept_however_late_it_ends
        a_failed_record_never_looks_completed_before_it_is
        what_a_store_holds_rises_with_records_and_falls_with_a_sweep
    }
    list {
        every_record_is_on_one_page
        a_listing_has_what_counts_now
        a_listing_filters_by_state
        a_listing_filters_by_scope
        a_listing_filters_by_age
        a_listing_finds_a_key_of_any_scope_and_caller
        a_listing_filters_by_time_caller_and_reason
        a_listing_by_time_finds_what_an_operator_resolved
        a_listing_finds_expired_leases
        a_listing_says_how_many_records_it_looked_at
        a_page_is_never_too_large
        records_that_rest_are_listed_once_while_others_move
        an_empty_store_has_one_empty_page
    }
    answers {
        an_empty_body_is_replayed
        a_mebibyte_is_replayed
        every_byte_is_replayed
        repeated_headers_are_replayed_in_order
        trailers_are_replayed
        an_answer_not_retained_is_replayed
        an_answer_is_read_through_another_handle
        a_repeated_mebibyte_is_applied
    }
    watch {
        a_waiter_is_notified_of_an_answer
        a_waiter_is_notified_of_a_release
        a_waiter_is_notified_of_a_hold_and_of_its_resolution
        every_waiter_is_notified
    }
    limits {
        an_endless_lease_does_not_lapse
        an_endless_retention_does_not_pass
        fractions_of_a_millisecond_do_no_harm
    }
    races {
        of_many_claims_one_is_granted
        of_many_threads_one_is_granted
        a_lapsed_lease_is_taken_over_once
        an_answer_or_a_takeover_wins
        a_renewal_or_a_takeover_wins
        an_answer_or_a_release_wins
        a_late_answer_or_an_operator_wins
        a_late_answer_or_forgetting_wins
        of_many_operators_one_acts
        an_expired_key_is_swept_or_claimed
        a_lapsed_key_is_failed_or_completed
        an_answer_is_recorded_once
        a_dropped_claim_can_be_asked_again
        no_two_owners_run_at_once
    }
        }
    };
}

/// The same for cases that need a store which outlives its process.
#[doc(hidden)]
#[macro_export]
macro_rules! conform_durable_themes {
    ($with:ident $($arguments:tt)*) => {
        $crate::$with! { $($arguments)*
    durable {
        a_granted_claim_outlives_the_process
        a_recorded_answer_outlives_the_process
        a_release_outlives_the_process
        a_forgotten_record_outlives_the_process
        details_outlive_the_process
        a_held_record_outlives_the_process
        an_owner_asks_again_after_a_restart
        a_lease_lapses_across_a_restart
        retention_passes_across_a_restart
        fences_rise_across_a_restart
        fences_rise_across_a_restart_after_forgetting
        fences_rise_across_a_restart_after_a_sweep
        an_operators_act_outlives_the_process
        many_answers_outlive_the_process
    }
        }
    };
}

/// The same for cases that need a store which can be backed up and restored.
#[doc(hidden)]
#[macro_export]
macro_rules! conform_restore_themes {
    ($with:ident $($arguments:tt)*) => {
        $crate::$with! { $($arguments)*
    restore {
        what_was_backed_up_is_there
        fences_rise_across_a_restore
        fences_rise_in_the_place_of_a_lost_store
        a_zombie_of_the_lost_time_writes_nothing
        an_owner_from_before_the_backup_finishes_after_a_restore
        an_owner_of_the_lost_time_writes_nothing_to_the_backup
        the_epoch_rises_across_a_restore
    }
        }
    };
}
