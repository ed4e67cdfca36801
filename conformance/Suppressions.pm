# Changes of MTR for Lockstep: warnings, and options.
#
# Lockstep's warnings that MariaDB's tests provoke on purpose. MTR fails a test after any unexpected warning in a server's
# log. The suites (suite.pm and the tests) expect Galera's texts only. This list adds Lockstep's text for each such
# event; the comment above it is Galera's. Any other warning still fails a test.
package Suppressions;

use strict;
use warnings;

push @main::global_suppressions, (
    # "no nodes coming from prim view, prim not possible"
    qr(WSREP: the majority is lost: non-Primary),
    # "Ignoring possible split-brain (allowed by configuration)"
    qr(WSREP: provider option pc\.ignore_sb has no effect),
    # "last inactive check more than PT1.5S ago": the test stops the process for some seconds
    qr(WSREP: this process stalled for [\d.]+ s),
    # "TO isolation error timeout_error"
    qr(WSREP: a statement of connection \d+ was in progress when the majority was lost),
    # "Backend not supported: foo"
    qr(WSREP: address 'foo://' has an unknown scheme),
    # "Invalid backend URI"
    qr(WSREP: cluster address '.*' does not begin with gcomm://),
    # "Unknown parameter 'gmcasts.segment'", "Set options returned 7"
    qr(WSREP: wsrep_provider_options are unchanged: unknown provider option 'gmcasts\.segment'),
    qr(WSREP: Set options returned 1),
    # Galera founds a second history, or refuses the start
    qr(WSREP: this start should found a new cluster \(--wsrep-new-cluster\), but this member),
    # "Requesting state transfer failed"
    qr(WSREP: the server could not prepare for a state transfer),
    # "Inconsistency detected: Inconsistent by consensus on"
    qr(WSREP: Inconsistency detected: Inconsistent by consensus on),
    # "Vote 0 (success) on ... is inconsistent with group. Leaving cluster."
    qr(WSREP: Vote 0 \(success\) on .* is inconsistent with group),
);

# The tests of streaming replication expect a provider that has it. Lockstep has it if asked.
INIT {
    if ($ENV{LOCKSTEP_OPTIONS}) {
        my $new_config = \&My::ConfigFactory::new_config;
        no warnings 'redefine';
        *My::ConfigFactory::new_config = sub {
            my $config = $new_config->(@_);
            foreach my $option (map { $_->options() } $config->like('mysqld')) {
                next unless $option->name() =~ /^wsrep[-_]provider[-_]options$/;
                my $value = $option->value();
                my $quote = $value =~ s/(['"])\s*$// ? $1 : '';
                $option->{value} = "$value;$ENV{LOCKSTEP_OPTIONS}$quote";
            }
            return $config;
        };
    }
}

1;
