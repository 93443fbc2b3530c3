package stress

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
)

// control is what an operator does.
func (u *user) control(ctx context.Context) error {
	a, t, c := u.w.Artefacts(), u.tenant(), u.w.Constants()
	some := func(most int64) limit.Limit { return limit.Of(u.random.Int64N(most + 1)) }
	switch u.random.IntN(20) {
	case 0, 1:
		return a.SetCapacity(some(mostEntries), limit.Limit{})
	case 2:
		return a.SetCapacity(limit.Limit{}, some(stormBytes))
	case 3:
		return a.Reset(u.owner())
	case 4, 5:
		return u.below(t.SetGroups(ctx, some(mostGroups)))
	case 6:
		return u.below(t.SetBytes(ctx, some(stormBytes)))
	case 7:
		return t.Reset(ctx, u.owner())
	case 8:
		return t.ResetAll(ctx)
	case 9:
		return t.Hold(u.owner())
	case 10:
		shape, err := kiln.ShapeOf([]int64{u.random.Int64N(shapes)})
		return errors.Join(err, t.Announce(shape))
	case 11:
		return c.SetCapacity(ctx, constants.CPU, some(2))
	case 12:
		return c.SetDeviceCapacity(ctx, constants.GPU, 7, limit.Unlimited)
	case 13:
		owner, floor := u.owner(), u.random.Int64N(8<<10)
		err := a.AddFloor(owner, floor)
		if err == nil {
			u.later(func() { _ = a.AddFloor(owner, -floor) })
		}
		return err
	case 14:
		u.w.fake.Lose()
	case 15:
		u.spare.Load().fake.Lose()
	case 16:
		_, err := t.Cache().SavePolicy(ctx)
		return err
	case 17:
		_, err := t.Cache().Advice(ctx, "lru", 4)
		return err
	case 18:
		u.turns(t.Cache().Stats().Touched, a.Stats().Touched, c.Stats().Touched, u.spare.Load().Stats().Touched)
	default:
		if u.w.Store() != nil {
			_, err := u.w.Store().Verify(ctx, u.random.IntN(2) == 0)
			return err
		}
	}
	return nil
}

// below is err, but for a capacity below a session's floor.
func (u *user) below(err error) error {
	if errors.Is(err, fault.ErrInvalid) {
		return nil
	}
	return err
}

// relocate closes a session under its users, and opens another in its place.
func (u *user) relocate(ctx context.Context) error {
	at := u.random.IntN(tenants)
	old := u.w.tenants[at].Load()
	saved, _ := old.Cache().SavePolicy(ctx)
	if u.random.IntN(2) == 0 {
		_ = old.Close(ctx)
	}
	err := u.move(u.w, at, u.random, saved)
	return errors.Join(err, old.Close(ctx))
}

// replace closes the executor of no runtime under its users.
func (u *user) replace(ctx context.Context) error {
	old := u.spare.Swap(u.device(u.random))
	if err := u.close(ctx, old.Close); err != nil {
		return fmt.Errorf("closing an executor: %w", err)
	}
	u.left(old.fake.Backend)
	return nil
}

// damage spoils, cuts or removes a file of the store.
func (u *user) damage() {
	files, _ := filepath.Glob(filepath.Join(u.dir, "store", "*", "*", "*", "*.bin"))
	if len(files) == 0 {
		return
	}
	name := files[u.random.IntN(len(files))]
	switch u.random.IntN(4) {
	case 0:
		_ = os.Remove(name)
	case 1:
		_ = os.Truncate(name, u.random.Int64N(200))
	default:
		if f, err := os.OpenFile(name, os.O_RDWR, 0); err == nil {
			_, _ = f.WriteAt([]byte{byte(u.random.IntN(256))}, u.random.Int64N(2000))
			_ = f.Close()
		}
	}
}
