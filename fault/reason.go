package fault

// Reason says why a look-up missed, or why something was rejected. The set is
// closed (SPEC R1). Each room counts the reasons that can arise in it.
type Reason string

// The reasons of SPEC R1.
const (
	Absent          Reason = "absent"           // nothing is there under this key
	Disabled        Reason = "disabled"         // the cache or the store is off, or the build is not known; then Field says what is missing
	KeyRefused      Reason = "key_refused"      // the key does not cover all that goes in (an input that cannot be hashed)
	Format          Reason = "format"           // no file of this format
	Truncated       Reason = "truncated"        // shorter than it says
	Trailing        Reason = "trailing"         // longer than it says
	TooLarge        Reason = "too_large"        // above what may be read, or kept
	Checksum        Reason = "checksum"         // its digest does not match
	KeyCollision    Reason = "key_collision"    // it is the value of another key
	Outdated        Reason = "outdated"         // made by another format, library, build, compiler or driver: see Field
	DeviceMismatch  Reason = "device_mismatch"  // made for another device
	Incompatible    Reason = "incompatible"     // needs instruction sets that are not here
	SourceChanged   Reason = "source_changed"   // made from another source
	DriverHeader    Reason = "driver_header"    // the driver's own header says that it does not fit
	DriverRefused   Reason = "driver_refused"   // Load, or the driver, did not take it
	Quirk           Reason = "quirk"            // this driver is known not to bear it
	Unsigned        Reason = "unsigned"         // there is a trust list, and nobody signed it
	UntrustedSigner Reason = "untrusted_signer" // its signer is not on the trust list
	Revoked         Reason = "revoked"          // its signer's key was revoked
	Quarantined     Reason = "quarantined"      // it was set aside before
	Busy            Reason = "busy"             // another process is at work on it
	Degraded        Reason = "degraded"         // the store cannot be read or written
)

// Reasons gives the whole set in the order of SPEC R1.
func Reasons() []Reason {
	return []Reason{Absent, Disabled, KeyRefused, Format, Truncated, Trailing, TooLarge, Checksum, KeyCollision,
		Outdated, DeviceMismatch, Incompatible, SourceChanged, DriverHeader, DriverRefused, Quirk, Unsigned,
		UntrustedSigner, Revoked, Quarantined, Busy, Degraded}
}
