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
        callers_do_not_share_keys
        scopes_do_not_share_keys
        keys_are_compared_byte_by_byte
        records_of_the_longest_names_are_distinct
        an_owner_repeats_its_claim_through_another_handle
        an_owner_token_does_not_grant_another_fingerprint
        one_owner_token_can_claim_two_keys
        a_repeated_claim_never_shortens_the_lease
        a_repeated_claim_does_not_reset_its_age
        a_refused_claim_does_not_change_the_policy
        a_granted_claim_sets_its_own_policy
    }
    takeover {
        a_lease_lives_to_its_last_millisecond
        a_renewed_lease_is_valid_after_its_first_expiry
        a_renewal_never_shortens_the_lease
        lease_left_decreases_with_time
        a_takeover_fences_off_the_old_owner
        an_old_owner_that_claims_again_is_not_recognised
        attempts_and_fences_rise_with_every_takeover
        on_unknown_of_the_record_applies_not_that_of_the_claim
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
        a_fence_does_not_fall_after_a_deletion
        a_fence_does_not_fall_after_a_sweep
        a_fence_does_not_fall_past_retention
        an_owner_from_before_a_sweep_does_not_write
    }
    forgotten {
        another_owner_with_the_same_fence_writes_nothing
        a_stale_duplicate_claim_after_a_forget_is_not_granted
        a_stale_duplicate_claim_after_a_release_is_not_granted
        a_forget_can_be_repeated_after_a_lost_reply
        a_first_run_that_was_not_sent_is_forgotten
        what_was_refused_or_forgotten_is_kept_for_an_hour
        thousands_of_refused_records_are_swept_after_an_hour
        a_short_retention_is_not_stretched_to_an_hour
        the_fences_of_a_new_store_start_at_the_wall_clock
    }
    details {
        the_longest_details_are_kept
        a_new_claim_brings_its_own_details
        a_refused_claim_changes_no_details
        a_record_has_the_time_and_the_reason_of_its_end
        a_record_has_the_time_of_its_lease_expiry
        metadata_is_visible_to_all_handles
        metadata_that_is_too_large_is_refused
    }
    retention {
        an_answer_is_kept_to_its_last_millisecond
        retention_counts_from_the_claim
        an_answer_after_half_the_retention_restarts_retention
        an_answer_at_half_the_retention_keeps_the_expiry
        a_release_after_half_the_retention_restarts_retention
        a_resolution_after_half_the_retention_restarts_retention
        a_failure_after_half_the_retention_restarts_retention
        a_renewal_does_not_change_the_expiry
        a_new_claim_restarts_retention
        a_held_record_never_expires
        a_running_record_never_expires
        a_record_with_zero_retention_expires_at_once
    }
    held {
        a_late_answer_beats_the_operator
        the_operator_beats_a_late_answer
        a_held_record_keeps_its_attempts
        an_owner_completes_a_record_that_the_reaper_held
        a_lapsed_hold_is_held_for_all_handles
        an_unresolved_hold_fails_after_hold_for
        a_record_held_by_lease_expiry_fails_after_hold_for
        a_claim_ends_a_hold_that_is_too_old
    }
    operator {
        a_resolved_answer_is_replayed
        a_key_released_by_an_operator_is_granted_as_the_next_attempt
        a_deleted_key_starts_over
        a_resolution_is_applied_once
        an_act_loses_against_a_newer_claim
        a_deletion_loses_against_a_late_answer
        an_act_raises_the_epoch_for_all_handles
        writes_of_an_owner_do_not_raise_the_epoch
        all_handles_report_the_same_store_identity
    }
    maintenance {
        a_reaper_keeps_its_limit
        a_reaper_keeps_its_limit_over_leases_and_holds
        a_sweep_keeps_its_limit
        a_batch_with_limit_zero_does_nothing
        a_reaped_record_is_no_longer_renewed
        a_record_reaped_as_failed_refuses_a_late_answer
        what_was_reaped_is_not_reaped_again
        a_swept_key_starts_over
        a_sweep_is_not_stopped_by_records_that_never_finish
        records_of_many_retentions_are_all_swept
        a_record_with_zero_retention_is_swept_however_late_it_ends
        a_failed_record_never_looks_completed_before_it_is
        usage_rises_with_records_and_falls_with_a_sweep
    }
    list {
        every_record_is_on_one_page
        a_listing_has_the_effective_state
        a_listing_filters_by_state
        a_listing_filters_by_scope
        a_listing_filters_by_age
        a_listing_finds_a_key_of_any_scope_and_caller
        a_listing_filters_by_time_caller_and_reason
        a_listing_by_time_finds_what_an_operator_resolved
        a_listing_finds_expired_leases
        a_page_has_the_number_of_examined_records
        a_page_is_never_too_large
        unchanged_records_are_listed_once_while_others_change
        an_empty_store_has_one_empty_page
    }
    answers {
        an_empty_body_is_replayed
        a_mebibyte_is_replayed
        every_byte_value_is_replayed
        repeated_headers_are_replayed_in_order
        trailers_are_replayed
        an_answer_not_retained_is_replayed
        an_answer_is_read_through_another_handle
        a_repeated_completion_with_a_large_answer_is_applied
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
        a_lease_with_a_fraction_of_a_millisecond_expires_on_time
    }
    velocity {
        a_limit_refuses_what_exceeds_it_until_a_unit_frees
        a_limit_counts_by_its_key
        an_execution_counts_from_its_claim
        a_repeat_costs_nothing_and_is_not_refused
        an_operation_counts_once_whatever_its_attempts
        a_takeover_keeps_one_unit
        a_refused_claim_reserves_nothing
        a_limit_that_reports_grants_and_says_so
        a_counter_of_the_largest_limit_is_exact
        a_sweep_keeps_what_counts
        only_what_was_never_sent_returns_an_execution
        an_outcome_counts_only_if_it_is_the_one
        an_outcome_counts_from_its_end
        a_held_record_keeps_its_reservation
        a_lease_that_expires_settles_by_its_policy
        a_repeated_or_late_finish_settles_nothing
        of_many_claims_as_many_as_the_limit_are_granted
        there_is_never_one_decline_too_many
    }
    races {
        of_many_claims_one_is_granted
        of_many_threads_one_is_granted
        a_lapsed_lease_is_taken_over_once
        an_answer_or_a_takeover_wins
        a_renewal_or_a_takeover_wins
        an_answer_or_a_release_wins
        a_late_answer_or_an_operator_wins
        a_late_answer_or_a_deletion_wins
        of_many_operators_one_acts
        an_expired_key_is_swept_or_claimed
        a_lapsed_key_is_failed_or_completed
        an_answer_is_recorded_once
        a_claim_whose_future_was_dropped_can_be_repeated
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
        an_owner_repeats_its_claim_after_a_restart
        a_lease_lapses_across_a_restart
        retention_passes_across_a_restart
        fences_rise_across_a_restart
        fences_rise_across_a_restart_after_a_deletion
        fences_rise_across_a_restart_after_a_sweep
        an_operators_act_outlives_the_process
        many_answers_outlive_the_process
        units_of_limits_outlive_the_process
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
        records_of_the_backup_are_restored
        fences_rise_across_a_restore
        fences_rise_in_a_store_that_replaces_a_lost_one
        a_zombie_granted_after_the_backup_writes_nothing
        an_owner_from_before_the_backup_finishes_after_a_restore
        an_owner_granted_after_the_backup_writes_nothing_after_the_restore
        the_epoch_rises_across_a_restore
    }
        }
    };
}
