# Changes of MTR for Lockstep: warnings, and options.
#
# Warnings that MariaDB's tests provoke on purpose. MTR fails a test after any unexpected warning in a server's log, and
# the suites (suite.pm and the tests) expect Galera's texts only. Each entry says what Galera does in the same situation,
# and why Lockstep warns. Any other warning still fails a test.
package Suppressions;

use strict;
use warnings;

push @main::global_suppressions, (
    # Galera warns, too: "no nodes coming from prim view, prim not possible". Writes fail until an operator acts. Our text
    # names the absent members.
    qr(WSREP: the majority is lost: non-Primary),
    # Galera warns, too: "last inactive check more than PT1.5S ago". The machine stops servers for seconds.
    qr(WSREP: this process stalled for [\d.]+ s),
    # Galera obeys the option. Lockstep does not: the operator does not get what it promises.
    qr(WSREP: provider option pc\.ignore_sb has no effect),
    # Galera warns, too: "TO isolation error timeout_error". The cluster may have committed the statement: the operator must
    # check that before repeating it.
    qr(WSREP: a statement of connection \d+ was in progress when the majority was lost),
    # Galera obeys the order and founds a second cluster beside the running one. Here the operator's order is not obeyed.
    qr(WSREP: this start should found a new cluster \(--wsrep-new-cluster\), but this member),
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
